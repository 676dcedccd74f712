/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers are read and printed with a decimal point, whatever locale a program has set for itself.
 * The two programs set none. Calls of libstowage enter the C locale and leave it again, and a
 * thread that the code starts enters it first: a thread begins with its process's locale. */
#ifndef STW_CORE_LOCALE_H
#define STW_CORE_LOCALE_H

/** The C locale for the calling thread, for all categories. It cannot fail, and takes no memory.
 * @return the locale that it had, for stw_locale_leave; never NULL */
void *stw_locale_enter(void);
/** Give the calling thread its locale again. */
void stw_locale_leave(void *before);

#endif
