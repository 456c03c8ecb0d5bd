#!/bin/bash
cat > /tmp/get.py <<'PY'
import time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8765/index.txt", timeout=5).read().decode(), end="")
        break
    except OSError:
        time.sleep(0.05)
PY
timeout 20 python3 /tmp/get.py > /tmp/got
if [ "$(cat /tmp/got)" = there ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
