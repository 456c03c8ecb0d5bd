#!/bin/bash
test ! -e secret.txt && test ! -e /tests && ./tools/say > greeting.txt
