#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# HTML reports in a headless Chromium (tests/html/page.py); skipped without one.
exec python3 -B "$STW_SOURCE_DIR/tests/html/page.py" "$STOWAGE" "$STW_SOURCE_DIR"
