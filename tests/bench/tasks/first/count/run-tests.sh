#!/bin/bash
# As pytest -rA ends, without needing one.
source $TEST_DIR/check.sh
