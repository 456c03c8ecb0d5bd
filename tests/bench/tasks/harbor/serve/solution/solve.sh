#!/bin/bash
setsid python3 -m http.server 8765 > /dev/null 2>&1 &
