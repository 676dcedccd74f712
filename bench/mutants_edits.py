# SPDX-License-Identifier: Apache-2.0
"""Small changes of C sources: what bench/mutants.py tries on every line.

A source is masked first: comments, texts, preprocessor lines (but the numbers of `#define NAME
NUMBER`), assertions, lengths of texts, log calls and what is printed by an error become blanks of the same length, so
that every offset stays and nothing in them is changed.
"""
import re

RELATIONS = {"<": ["<=", ">"], "<=": ["<", ">"], ">": [">=", "<"], ">=": [">", "<"],
             "==": ["!="], "!=": ["=="]}
ARITHMETIC = {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"], "<<": [">>"],
              ">>": ["<<"], "&": ["|"], "|": ["&"], "^": ["&"]}
ASSIGNMENTS = {"+=": ["-="], "-=": ["+="], "*=": ["+="], "/=": ["*="], "|=": ["&="],
               "&=": ["|="], "<<=": [">>="], ">>=": ["<<="], "^=": ["|="]}
STEPS = {"++": ["--"], "--": ["++"]}
LOGIC = {"&&": ["||"], "||": ["&&"]}
WORDS = {"true": ["false"], "false": ["true"], "break": ["continue"], "continue": ["break"],
         "stw_min_u64": ["stw_max_u64"], "stw_max_u64": ["stw_min_u64"], "fmin": ["fmax"],
         "fmax": ["fmin"], "NULL": []}
OPERATORS = [(RELATIONS, "relation"), (ARITHMETIC, "arithmetic"), (ASSIGNMENTS, "arithmetic"),
             (STEPS, "arithmetic"), (LOGIC, "logic")]
TOKEN = re.compile(r"->|<<=|>>=|\+\+|--|&&|\|\||[<>=!+\-*/%&|^]=|<<|>>|[<>+\-*/%&|^!~?=]")
NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)(?![\w.])")
REAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(f?)(?![\w.])")
STATUS = re.compile(r"\bSTW_STATUS_[A-Z_]+\b")
ENUM = re.compile(r"\bSTW_(?:TIER|COMPONENT|ELEMENT|PHASE|OP|RESOURCE|STREAM)_[A-Z0-9_]+\b")
CONDITION = re.compile(r"\b(?:if|while)\s*(?=\()")
STATEMENT = re.compile(r"(?:(?<=[;{}:\n])|(?<=\belse)|(?<=\)))[ \t]*\n?[ \t]*"
                       r"(?=[A-Za-z_*(][^;{}]*;)")
NO_STATEMENT = re.compile(r"(?:if|for|while|switch|case|default|else|do|struct|typedef|static|enum|"
                          r"const|union|extern|void|return\s+[^;]|#)\b|.*\breturn\s+[^;\s]", re.S)
ASSIGN = re.compile(r"[\w.>\-\[\]*()&+ ]*?(?:[-+|&^/*%]|<<|>>)?=[^=]")


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def matching(text, at):
    """The offset behind the bracket that closes the one at `at`; None where there is none."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i + 1
    return None


def mask(source):
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
                  lambda m: '"' + " " * (len(m[0]) - 2) + '"' if m[0][0] == '"' else blank(m[0]),
                  source, flags=re.S)

    def directive(m):
        kept = re.fullmatch(r"(#define\s+[A-Z_0-9]+\s+)([\d.xXa-fA-FuUeE]+)(.*)", m[0], re.S)
        return " " * len(kept[1]) + kept[2] + blank(kept[3]) if kept else blank(m[0])

    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", directive, text, flags=re.M)
    text = re.sub(r"(\bchar \w+\[)(\d+)(?=\])", lambda m: m[1] + " " * len(m[2]), text)
    for call in re.finditer(r"\b(?:assert|static_assert|_Static_assert|stw_log)\s*(?=\()", text):
        end = matching(text, call.end())
        text = text[:call.start()] + blank(text[call.start():end]) + text[end:]
    for call in re.finditer(r"\b(?:stw_fail|stw_errno_status|stw_error_format)\s*(?=\()", text):
        end = matching(text, call.end())
        quote = text.find('"', call.end(), end)
        if quote >= 0:  # the format and its values
            text = text[:quote] + blank(text[quote:end - 1]) + text[end - 1:]
    return text.replace('"', " ")


def binary(text, first, last):
    """Is this operator a binary one? clang-format puts blanks around those, and only those."""
    return text[first - 1] in " \n" and text[last:last + 1] in (" ", "\n")


def operator_edits(text, start, end):
    for m in TOKEN.finditer(text, start, end):
        for table, kind in OPERATORS:
            if m[0] in table and (m[0] in STEPS or binary(text, m.start(), m.end())):
                for new in table[m[0]]:
                    yield kind, m.start(), m.end(), new


def number_edits(text, start, end):
    for m in NUMBER.finditer(text, start, end):
        value = int(m[1], 8 if re.fullmatch("0[0-7]+", m[1]) else 0)
        for new in {value + 1, value - 1} - {-1}:
            yield "constant", m.start(), m.end(), f"{new}{m[2]}"
        if value == 0 and not m[2]:
            yield "constant", m.start(), m.end(), "(-1)"
    for m in REAL.finditer(text, start, end):
        new = "1.0" if float(m[1]) == 0 else repr(float(m[1]) * 2)
        yield "constant", m.start(), m.end(), new + m[2]


def word_edits(text, start, end, statuses, enums):
    for m in re.finditer(r"\b[A-Za-z_]\w*\b", text[start:end]):
        for new in WORDS.get(m[0], []):
            yield "word", start + m.start(), start + m.end(), new
    for m in STATUS.finditer(text, start, end):
        for new in statuses:
            if new != m[0]:
                yield "status", m.start(), m.end(), new
    for m in ENUM.finditer(text, start, end):
        prefix = "_".join(m[0].split("_")[:2])
        for new in enums:
            if new != m[0] and new.startswith(prefix + "_"):
                yield "enum", m.start(), m.end(), new


def condition_edits(text, start, end):
    for m in CONDITION.finditer(text, start, end):
        close = matching(text, m.end())
        if close:
            yield "negate", m.end(), close, lambda old: "(!" + old + ")"
    for m in re.finditer(r"(?<=[(&| ])!(?=[\w(])", text[start:end]):
        yield "negate", start + m.start(), start + m.end(), " "


def statement_edits(text, start, end):
    for m in STATEMENT.finditer(text, max(0, start - 1), end):
        first = m.end()
        if not start <= first < end:
            continue
        last = text.find(";", first)
        statement = text[first:last]
        if statement.count("(") != statement.count(")") or NO_STATEMENT.match(statement):
            continue
        if re.match(r"\w+ [*\w]", statement) and not statement.startswith("goto"):
            continue  # a declaration
        if "(" in statement or ASSIGN.match(statement) or re.match(
                r"(?:return|break|continue|goto \w+|[\w.>\-\[\]]+(?:\+\+|--))$", statement):
            yield "remove", first, last, lambda old: "(void)0" + "\n" * old.count("\n")


def is_call(text, at):
    """Does `at` stand in brackets of its statement? A list of declarations does not."""
    depth = 0
    for i in range(at, -1, -1):
        depth += (text[i] in ")]") - (text[i] in "([")
        if depth < 0:
            return True
        if text[i] in ";{}":
            return False
    return False


def argument_edits(text, start, end):
    for m in re.finditer(r"([(,]\s*)([\w.>\-]+|&[\w.>\-]+)(,\s*)([\w.>\-]+|&[\w.>\-]+)(?=\s*[,)])",
                         text[start:end]):
        if m[2] != m[4] and is_call(text, start + m.start(2)) and not (m[2].isdigit() and m[4].isdigit()):
            yield ("swap", start + m.start(2), start + m.end(4),
                   lambda old, m=m: m[4] + m[3] + m[2])


def return_edits(text, start, end):
    for m in re.finditer(r"\breturn\s+([^;]+);", text[start:end]):
        value = m[1].strip()
        if value not in ("0", "true", "false", "NULL") and not value.startswith("STW_STATUS"):
            yield "return", start + m.start(1), start + m.end(1), "0"


def edits(source, text, start, end, names):
    """All changes of text[start:end], a line, as (kind, first, last, new), by kind."""
    found = {}
    statuses, enums = names
    for stream in (operator_edits(text, start, end), number_edits(text, start, end),
                   word_edits(text, start, end, statuses, enums), condition_edits(text, start, end),
                   statement_edits(text, start, end), argument_edits(text, start, end),
                   return_edits(text, start, end)):
        for kind, first, last, new in stream:
            new = new(source[first:last]) if callable(new) else new
            found.setdefault(kind, []).append((first, last, new))
    return found
