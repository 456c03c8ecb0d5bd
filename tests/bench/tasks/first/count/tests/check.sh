echo "=========================== short test summary info ============================"
echo "PASSED ../tests/test_outputs.py::test_lines_are_there"
if [ "$(cat /app/count.txt 2> /dev/null)" = 17 ]; then
  echo "PASSED ../tests/test_outputs.py::test_count"
  exit 0
fi
echo "FAILED ../tests/test_outputs.py::test_count - assert '' == '17'"
exit 1
