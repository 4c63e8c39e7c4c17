"""One file per fix. The file name is the id; each file defines ``patch``."""
