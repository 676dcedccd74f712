#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random scripts for unit.shell_compare's program, which runs each in a real bash and reads it:
    bench/shell_scripts.py SEED N >scripts.txt; build/tests/shell_compare scripts.txt
Nothing may be wrong; a script may be refused or have words that are open."""
import random
import sys

NAMES = ["A", "B", "C", "L"]


class Writer:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.depth = 0
        self.functions = 0

    def one(self, *choices):
        choice = self.r.choice(choices)
        return choice() if callable(choice) else choice

    def name(self):
        return self.r.choice(NAMES)

    def number(self):
        return self.one("0", "1", "2", "3", "7", "08", "10", "-1", "1.5", "")

    def pattern(self):
        return self.one("a*", "*b", "?", "*", "[ab]*", "[!a]", "a/b", "*/*", "/", "x", "\\*", '"*"', "")

    def text(self):
        return self.one("a", "b", "a b", "x/y/z", "", "a*", "  a  b ", "--f 1", "1,2,3", "ab/ba", "a=b")

    def expansion(self):
        n = self.name()
        return self.one(
            "$" + n, "${%s}" % n, "${%s:-%s}" % (n, self.text()), "${%s-q}" % n, "${%s:+%s}" % (n, self.text()),
            "${%s+s}" % n, "${%s:=d}" % n, "${#%s}" % n, "${%s#%s}" % (n, self.pattern()),
            "${%s##%s}" % (n, self.pattern()), "${%s%%%s}" % (n, self.pattern()),
            "${%s%%%%%s}" % (n, self.pattern()), "${%s/%s/%s}" % (n, self.pattern(), self.one("q", "", "/")),
            "${%s//%s/%s}" % (n, self.pattern(), self.one("q", "", "/")), "${%s////_}" % n,
            "${%s:1}" % n, "${%s:0:2}" % n, "${%s: -1}" % n, "${%s^^}" % n, "${%s,}" % n, "$?", "$#", "$1", "$*",
            "${%s[@]}" % n, "${%s[*]}" % n, "${%s[1]}" % n, "${#%s[@]}" % n, "${%s[@]:1}" % n,
            lambda: "$((%s))" % self.sum(), lambda: "$(%s)" % self.output(), "${!%s}" % n)

    def sum(self):
        n = "D"
        return self.one(self.number, n, "%s + 1" % n, "%s * 2" % n, "2 ** 3", "%s / 2" % n, "7 % 3", "%s / 0" % n,
                        "1 << 2", "%s > 1" % n, "%s++" % n, "++%s" % n, "%s = 4" % n, "%s += 2" % n, "1 ? 2 : 3",
                        "$%s + 1" % n, "(1 + 2) * 3", "$? + 1", "%s && 1" % n, "!%s" % n)

    def output(self):
        return self.one("echo " + self.one("a", "a b", "$%s" % self.name(), "$?"), "expr 1 - 1", "expr 2 + 2", "seq 2",
                        "false", "true", "exit 3", "[ 1 = 2 ]", "case a in a) echo 1;; esac", "set -e; false; echo 1",
                        "cat <<E\n%s ) ' $%s\nE\n" % (self.text(), self.name()))

    def word(self):
        kind = self.r.randrange(6)
        if kind == 0:
            return self.one("a", "b1", "--x", "x=1", "a/b", "{a,b}", "x{1..3}")
        if kind == 1:
            return "'" + self.text() + "'"
        if kind == 2:
            return self.expansion()
        if kind == 3:
            return '"' + self.one("", "p ") + self.expansion() + self.one("", " s") + '"'
        if kind == 4:
            return '"$@"' if self.r.random() < .5 else '"${%s[@]}"' % self.name()
        return "p" + self.expansion() + "s"

    def value(self):
        return self.one(self.number, self.word, self.expansion, lambda: "'" + self.text() + "'")

    def assign(self):
        n = self.name()
        return self.one(
            lambda: "D=%s" % self.number(), lambda: "%s=%s" % (n, self.value()), lambda: "%s+=%s" % (n, self.value()),
            lambda: "%s=(%s)" % (n, " ".join(self.word() for _ in range(self.r.randrange(4)))),
            lambda: "%s+=(%s)" % (n, self.word()), lambda: "%s[1]=%s" % (n, self.value()),
            lambda: "export %s=%s" % (n, self.value()), "unset " + n, lambda: "((%s))" % self.sum(),
            lambda: "let '%s'" % self.sum(), lambda: "%s=%s %s=$?" % (n, self.value(), self.name()),
            lambda: "set -- " + " ".join(self.word() for _ in range(self.r.randrange(3))), "shift",
            lambda: "printf -v %s %%s %s" % (n, self.word()), lambda: "eval '%s=%s'" % (n, self.one("1", "$A", "$?")))

    def condition(self):
        n = self.name()
        return self.one(
            "[ $? -eq 0 ]", '[ "$?" != 1 ]', "[[ $? == 1 ]]", "(( $? ))", "true", "false", "! true", '[ -z "$%s" ]' % n,
            '[ "$%s" = a ]' % n, "[ $%s -gt 1 ]" % n, "[[ $%s == %s ]]" % (n, self.one("a*", "*b", "a/b", '"a*"')),
            "[[ $%s -lt 3 ]]" % n, "[[ $%s =~ ^a ]]" % n, lambda: "((%s))" % self.sum(), "[ $# -gt 1 ]",
            "test -n ${%s:-}" % n, "[[ -n $%s && $? -eq 0 ]]" % n, "f%d" % self.r.randrange(self.functions) if self.functions else "true",
            "(exit %s)" % self.one("0", "3"))

    def lines(self, n):
        return "\n".join(self.command() for _ in range(n))

    def compound(self):
        if self.depth > 2:
            return self.assign()
        self.depth += 1
        body, other = self.lines(self.r.randrange(1, 3)), self.lines(1)
        kind = self.r.randrange(10)
        if kind < 3:
            made = "if %s; then\n%s\n%sfi" % (self.condition(), body, self.one("", "else\n%s\n" % other))
        elif kind == 3:
            made = "for i in %s; do\n%s\n%s\ndone" % (" ".join(self.word() for _ in range(2)), body,
                                                    self.one("", "L=$L$i", "break", "[ $i = a ] && continue"))
        elif kind == 4:
            made = "case %s in\n%s) %s;;\n%s)\n%s\n%s esac" % (self.word(), self.pattern() or "a", self.assign(),
                                                             self.one("*", "b|a"), body, self.one(";;", ";&\nz) C=z;;"))
        elif kind == 5:
            made = "k%d=0; while [ $k%d -lt %s ]; do k%d=$((k%d+1))\n%s\ndone" % (
                self.depth, self.depth, self.one("0", "2"), self.depth, self.depth, body)
        elif kind == 6:
            made = "(\n%s\n)" % body
        elif kind == 7:
            made = "{ %s\n}" % body + self.one("", " || " + self.assign(), " && " + self.assign())
        elif kind == 8:
            made = "f%d() {\n%s\n%s\n}\nf%d %s" % (self.functions, self.one("", "local A=$1"), body + self.one(
                "", "\nreturn", "\nreturn 1", "\nfalse", "\n[ 1 = 2 ] && B=1"), self.functions, self.word())
            self.functions += 1
        else:
            made = "%s | %s" % (self.one("echo a", "false", "(exit 2)"), self.one("cat", "false", "true"))
        self.depth -= 1
        return made

    def command(self):
        kind = self.r.randrange(20)
        if kind < 8:
            return self.assign()
        if kind < 10:
            return self.condition()
        if kind < 12:
            return self.condition() + self.one(" && ", " || ") + self.one(self.assign, "false", "return 2 2>/dev/null")
        if kind == 12:
            return self.one("set -e", "set -u", "set +e", "set -o pipefail", "set -eo pipefail", "IFS=,", "unset IFS")
        if kind == 13:
            return ". ./set_%s" % self.one("a.sh", "b.sh 1 2", "c.sh", "d.sh", "no.sh")
        if kind == 14:
            return self.one("train first", "[ -d /nope ]", "eval 'A=$?'", "false || true", "X=$? eval 'B=$X'")
        return self.compound()

    def script(self):
        body = "\n".join(self.command() for _ in range(self.r.randrange(1, 7)))
        words = " ".join(self.word() for _ in range(self.r.randrange(1, 4)))
        first = "D=4 A=%s B=%s C=(%s) L=" % (self.one("a", "2", "a/b/a"), self.one("'x y'", "3"), self.one("1 2", "'a b' c", ""))
        return first + "\n" + body + "\ntrain $? " + words


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for i in range(count):
        print("==== any\n" + Writer(seed * 1000003 + i).script())


main()
