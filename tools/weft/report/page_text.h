/* page.html as the build compiled it in. */
#ifndef WEFT_TOOLS_REPORT_PAGE_TEXT_H
#define WEFT_TOOLS_REPORT_PAGE_TEXT_H

extern const char report_page_text[];

#endif
