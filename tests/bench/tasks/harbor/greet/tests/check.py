import os
import pathlib
import sys

wanted = os.popen("/app/tools/say").read()
found = pathlib.Path("/app/greeting.txt")
sys.exit(0 if wanted and found.is_file() and found.read_text() == wanted else 1)
