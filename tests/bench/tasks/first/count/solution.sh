#!/bin/bash
wc -l < lines.txt > count.txt
