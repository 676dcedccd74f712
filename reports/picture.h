/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of SVG pictures (reports/pictures.h). */
#ifndef STW_REPORTS_PICTURE_H
#define STW_REPORTS_PICTURE_H

#include "reports/pictures.h"
#include "reports/table.h"

/** The head of a picture with a white ground. @param title for readers of screens */
void stw_picture_begin(stw_text *out, int width, int height, const char *title);
void stw_picture_end(stw_text *out);
/** A line of text, escaped and shortened; `text` is freed. @param anchor "start", "middle", "end"
 */
void stw_picture_text(stw_text *out, double x, double y, const char *anchor, stw_text *text);

#endif
