#!/bin/bash
# The check runs in Python, as most do; it needs the task's own tool.
python3 /tests/check.py
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
elif [ -x /app/tools/say ]; then
  echo 0 > /logs/verifier/reward.txt
fi
