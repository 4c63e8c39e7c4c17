"""A package whose body imports a target in a thread and waits for it."""

import threading

thread = threading.Thread(target=__import__, args=("megatron.core.circle.target",))
thread.start()
thread.join(20)
joined = not thread.is_alive()
