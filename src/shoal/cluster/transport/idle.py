"""Does nothing for as long as the raylet that started it is there: what a raylet of ours has for a dashboard agent."""

import os
import time

if __name__ == "__main__":
    while os.getppid() == int(os.environ["RAY_RAYLET_PID"]):
        time.sleep(1.0)
