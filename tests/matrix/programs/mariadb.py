"""MariaDB: a real server on a socket, InnoDB and Aria, the binary log; crashes of the server, of `run`, of the machine."""
import os
import pwd
import subprocess
import threading
import time

from rig import await_true, need

NEEDS = ["mariadbd", "mariadb-install-db", "mariadb", "mariadb-check"]
LOGS = ["ib_logfile*", "binlog.*", "aria_log*"]
ALL = ["*"]


def version():
    return subprocess.run(["mariadbd", "--version"], capture_output=True, text=True).stdout.split("Ver ")[1].split("-")[0]


def options(rig):
    return ["--no-defaults", f"--datadir={rig.files}/data", f"--socket={rig.notes}/socket", "--skip-networking",
            *rights(rig), "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M",
            "--log-bin=binlog", "--sync-binlog=1", "--innodb-flush-log-at-trx-commit=1", "--skip-name-resolve",
            f"--pid-file={rig.notes}/pid", "--performance-schema=0", "--innodb-fast-shutdown=0"]


def users():
    return [it.pw_name for it in pwd.getpwall()]


def rights(rig):
    """Of root the server gives its rights away by itself, unless it is started as its user."""
    name = "mysql" if "mysql" in users() else "nobody"
    return [f"--user={name}"] if os.geteuid() == 0 and rig.user is None else []


def prepare(rig, match, gives_away=False):
    rig.patterns, rig.linger_s = match, 15
    if os.geteuid() == 0 and not gives_away:
        # Debian's package with the service makes the user, the one with the server alone does not.
        rig.own("mysql" if "mysql" in users() else "nobody")
    os.chmod(rig.files, 0o777)
    rig.call("mariadb-install-db", "--no-defaults", f"--datadir={rig.files}/data", "--auth-root-authentication-method=normal",
             "--skip-test-db", *rights(rig))


def client(rig, *words):
    return ["mariadb", "--no-defaults", f"--socket={rig.notes}/socket", "-u", "root", "-N", "-B", "--unbuffered", *words]


def start(rig, *more, plain=False):
    command = ["mariadbd", *options(rig), *more]
    program = rig.start_plain(command) if plain else rig.start(command)

    def answers():
        need(program.running(), program.words())
        return subprocess.run(client(rig, "-e", "select 1"), capture_output=True).returncode == 0

    await_true("mariadbd does not answer", answers, pause_s=0.03)
    return program


def sql(rig, statements):
    return rig.call_plain(*client(rig, "-e", statements))


def checked(rig):
    said = rig.call_plain("mariadb-check", "--no-defaults", f"--socket={rig.notes}/socket", "-u", "root", "--extended", "--databases", "d")
    need(all(it.endswith("OK") for it in said.splitlines()), said)


class Client(threading.Thread):
    """One transaction after another; a number counts when the client has printed that it is committed."""

    def __init__(self, rig, which, first):
        super().__init__(daemon=True)
        self.which, self.number, self.noted = which, first, []
        self.rig, self.cuts = rig, rig.cuts
        self.program = subprocess.Popen(client(rig, "d"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)
        self.start()

    def run(self):
        try:
            while True:
                name = f"{self.which}:{self.number}"
                self.program.stdin.write(f"begin; insert into t values ('{name}', repeat('m', {self.number * 7 % 3000}));\n"
                                         f"update counts set n = n + 1 where which = {self.which};\ncommit; select '{name}';\n")
                self.program.stdin.flush()
                if self.program.stdout.readline() != name + "\n" or self.rig.cuts != self.cuts:
                    break
                self.noted.append(name)
                self.number += 1
        except OSError:
            pass
        self.program.kill()
        self.program.wait()


def script(match, *more, gives_away=False):
    # Small, so that binary logs are replaced.
    more += ("--max-binlog-size=100000",)

    def case(rig):
        prepare(rig, match, gives_away)
        program = start(rig, *more)
        sql(rig, "create database d; use d; create table t(n int primary key, v varchar(100), key(v)) engine=innodb;"
                 "insert into t select seq, md5(seq) from seq_1_to_20000; update t set v = concat(v, n) where n % 3 = 0;"
                 "delete from t where n % 7 = 0; alter table t add column w int default 5, force; optimize table t;"
                 "create table a engine=aria transactional=1 as select * from t;"
                 "insert into a select n + 100000, v, w from t where n < 500;"
                 "create table m engine=myisam as select * from t where n < 300; create table gone(n int); drop table gone;"
                 "rename table m to m2; flush tables; flush binary logs; truncate table m2; insert into m2 select * from t where n < 50;")
        asked = "checksum table d.t, d.a, d.m2; select count(*), sum(n), sum(w) from d.t; select count(*) from d.a; show tables from d;"
        found = sql(rig, asked)
        checked(rig)
        program.stop()
        for plain in (True, False):
            program = start(rig, *more, plain=plain)
            need(sql(rig, asked) == found, "a start changed the data")
            checked(rig)
            program.stop()
        return {"found": found}

    return case


def crashed(match, *more, gives_away=False, cuts=True):
    def case(rig):
        prepare(rig, match, gives_away)
        program = start(rig, *more)
        sql(rig, "create database d; use d; create table t(name varchar(40) primary key, v text) engine=innodb;"
                 "create table counts(which int primary key, n int) engine=innodb; insert into counts values (0,0), (1,0), (2,0), (3,0);")
        program.stop()
        noted, firsts = [], [0] * 4
        for number, kind in enumerate(rig.kinds(4, cuts)):
            program = start(rig, *more)
            check(rig, noted)
            clients = [Client(rig, which, first) for which, first in enumerate(firsts)]
            await_true("nothing is committed", lambda: min(len(it.noted) for it in clients) >= 60 or not program.running())
            time.sleep(rig.rng.random() * 0.2)
            need(program.running(), program.words())
            rig.last_kind = kind
            rig.crash(program, kind)
            for it in clients:
                it.join(30)
                need(not it.is_alive(), "a client does not end")
                noted += it.noted
            # The number under way may be committed or not.
            firsts = [it.number + 1 for it in clients]
            if number % 2 == 0:
                rig.recover()
        program = start(rig, *more)
        check(rig, noted)
        checked(rig)
        program.stop()
        return {"crashes": 4}

    return case


def check(rig, noted):
    found = dict(line.split("\t") for line in sql(rig, "select name, length(v) from d.t").splitlines())
    lost = [it for it in noted if found.get(it) != str(int(it.split(":")[1]) * 7 % 3000)]
    need(not lost, f"after {rig.last_kind}: {len(lost)} of {len(noted)} committed rows are lost: {lost[:5]}")
    for line in sql(rig, "select which, n from d.counts").splitlines():
        which, count = line.split("\t")
        rows = sum(it.startswith(which + ":") for it in found)
        need(int(count) == rows, f"client {which} has {rows} rows, and counted {count}: a transaction is there by half")


# Debian's server has libaio for its pages by default, whose calls pass the C library by.
PLAIN_IO = "--innodb-use-native-aio=0"
CASES = {
    "script, logs": script(LOGS, PLAIN_IO),
    "script, all files": script(ALL, PLAIN_IO),
    "script, all files, libaio": script(ALL),
    "script, rights given away": script(LOGS, PLAIN_IO, gives_away=True),
    "crash, logs": crashed(LOGS),
    "crash, all files": crashed(ALL, PLAIN_IO),
    "crash, all files, libaio": crashed(ALL),
    # Killed, and not cut. The server (10.11.19) writes a checkpoint though it has not synced all pages that the checkpoint takes for
    # durable: strace shows pages of ibdata1 without an fdatasync before the log's checkpoint. After a cut without run it finds such
    # pages corrupt, and does not start.
    "crash, all files, fsync": crashed(ALL, PLAIN_IO, "--innodb-flush-method=fsync", cuts=False),
    "crash, rights given away": crashed(ALL, PLAIN_IO, gives_away=True),
}
SHORT = ()
