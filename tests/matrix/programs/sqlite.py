"""SQLite: five journal modes, synchronous variants, several processes at once, the command line."""
import sqlite3

from rig import need
from work import WORK

NEEDS = ["sqlite3", "python3"]
ALL = ["*.db", "*.db-*"]
# MEMORY keeps no journal on disk, so a kill may break the database: it is compared, and not killed.
MODES = ("delete", "truncate", "persist", "wal", "memory")


def version():
    return sqlite3.sqlite_version


def worker(rig, *arguments, **options):
    return rig.start(["python3", WORK + "/sqlite_work.py", *arguments], **options)


def compared(rig):
    """The same statements in each mode: contents and the mode's files are the same."""
    found = {}
    for mode in MODES:
        for synchronous in ("full", "extra", "normal"):
            base = f"{mode}-{synchronous}.db"
            patterns = ["*.db-journal", "*-wal"] if synchronous == "normal" else ALL
            rig.call("python3", WORK + "/sqlite_work.py", "script", base, mode, synchronous, match=patterns)
            found[base] = rig.call_plain("sqlite3", base, "pragma integrity_check; select count(*), total(n) from t", ".sha3sum")
            need(found[base].startswith("ok\n"), base + ": " + found[base])
    # A journal begins with a random number, so its bytes differ each time.
    return {**found, **{name: it for name, it in rig.content().items() if not name.endswith("-journal")}}


def shell(rig):
    """The command line: dump, restore, vacuum into, backup."""
    script = "pragma journal_mode=wal; create table t(a, b); insert into t select value, hex(value) from generate_series(1, 5000);\n" \
        ".backup copy.db\nvacuum into 'small.db'; delete from t where a % 2; vacuum;\n.dump\n"
    told = []
    for match in (ALL, None):
        with open(rig.notes + "/script", "w") as file:
            file.write(script)
        with open(rig.notes + "/script") as file:
            told.append(rig.call("sqlite3", f"shell{len(told)}.db", match=match, stdin=file))
        rig.call_plain("rm", "-f", "small.db")
    need(told[0] == told[1], "the dumps differ")
    for base in ("shell0.db", "shell1.db", "copy.db"):
        need(rig.call_plain("sqlite3", base, "pragma integrity_check") == "ok\n", base)
    return {"dump": told[0], "sum": rig.call_plain("sqlite3", "copy.db", ".sha3sum")}


def crashed(mode, synchronous="full", match=ALL, workers=1, start="fork"):
    def case(rig):
        rig.patterns = match or []

        def load(first):
            return worker(rig, "load", "base.db", rig.notes + "/note", mode, synchronous, workers, start, first)

        def check(lines, call):
            with open(rig.notes + "/lines", "w") as file:
                file.write("\n".join(lines))
            call("python3", WORK + "/sqlite_work.py", "check", "base.db", rig.notes + "/lines")

        # FULL does not sync the directory after it removed a journal: a power cut may bring the last transaction's journal back.
        return rig.crashes(4, load, check, cuts=mode != "delete" or synchronous == "extra")

    return case


def handed_over(rig):
    """A crash under run, then use without run, then run again: nothing is rolled back."""
    def rows(call, number):
        call("sqlite3", "base.db", f"pragma journal_mode=wal; create table if not exists t(n); insert into t values({number});")

    for number in range(8):
        if number % 2:
            rows(rig.call_plain, number)
        else:
            program = worker(rig, "hold", "base.db", rig.notes + "/note", number)
            while len(rig.acknowledged()) <= number // 2:
                need(program.running(), program.words())
            rig.crash(program, ["all", "main", "run"][number // 2 % 3])
    return {"rows": rig.call("sqlite3", "base.db", "select group_concat(n) from (select n from t order by n)")}


CASES = {
    "five modes": compared,
    "command line": shell,
    "hand over": handed_over,
    "crash delete": crashed("delete"),
    "crash delete extra": crashed("delete", "extra"),
    "crash truncate": crashed("truncate"),
    "crash persist": crashed("persist"),
    "crash wal": crashed("wal", match=None),
    "crash wal, all files": crashed("wal"),
    "crash wal extra": crashed("wal", "extra"),
    "prefork wal": crashed("wal", workers=4, match=None),
    "prefork wal, all files": crashed("wal", workers=4),
    "prefork delete": crashed("delete", "extra", workers=4),
    "programs wal": crashed("wal", workers=4, start="spawn"),
    "programs truncate": crashed("truncate", workers=3, start="spawn"),
}
SHORT = ("five modes", "crash wal", "prefork delete")
