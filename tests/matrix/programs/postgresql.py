"""PostgreSQL: a real server on a socket, pgbench, a commit log of several clients; crashes of the server, of `run`, of the machine.

Backends are forked children, whose syncs go to the file system. So commits are carried by PostgreSQL's own syncs, and survive a lost area
(--lose-area): the cases show that `run` does no harm.
"""
import glob
import os
import subprocess
import threading
import time

from rig import await_true, need

BIN = (sorted(glob.glob("/usr/lib/postgresql/*/bin")) or ["/usr/lib/postgresql"])[-1]
NEEDS = [BIN + "/postgres", BIN + "/initdb", BIN + "/pgbench", "psql", "setpriv"]
WAL = ["*/pg_wal/*"]
ALL = ["*"]


def version():
    return subprocess.run([BIN + "/postgres", "--version"], capture_output=True, text=True).stdout.split()[2]


def prepare(rig, match, *settings):
    """A cluster with checksums of pages, and segments of 1 MiB, so that segments are replaced all the time."""
    if os.geteuid() == 0:
        rig.own("postgres")
    rig.patterns, rig.linger_s = match, 15
    rig.call(BIN + "/initdb", "-D", "data", "--auth=trust", "--username=u", "--data-checksums", "--wal-segsize=1", "--locale=C",
             "--encoding=UTF8")
    with open(rig.files + "/data/postgresql.conf", "a") as file:
        file.write("listen_addresses = ''\nshared_buffers = 4MB\nmax_wal_size = 4MB\nmin_wal_size = 2MB\ncheckpoint_timeout = 30s\n"
                   f"unix_socket_directories = '{rig.notes}'\ncheckpoint_completion_target = 0.1\nautovacuum_naptime = 1s\n"
                   "dynamic_shared_memory_type = mmap\n")
        file.writelines(it + "\n" for it in settings)
        # The first crash may be a power cut.
        file.flush()
        os.fsync(file.fileno())


def start(rig, plain=False):
    command = [BIN + "/postgres", "-D", "data"]
    program = rig.start_plain(command) if plain else rig.start(command)

    def answers():
        need(program.running(), program.words())
        asked = ["psql", "-h", rig.notes, "-U", "u", "-d", "postgres", "-c", "select 1"]
        return subprocess.run(asked, capture_output=True).returncode == 0

    await_true("postgres does not answer", answers, pause_s=0.02)
    return program


def sql(rig, *statements):
    words = [it for statement in statements for it in ("-c", statement)]
    return rig.call_plain("psql", "-h", rig.notes, "-U", "u", "-d", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1", *words)


def pages(rig):
    """Every page's checksum, and every table against its indexes."""
    rig.call_plain(BIN + "/pg_checksums", "--check", "-D", "data")


def amcheck(rig):
    if os.path.exists(BIN + "/pg_amcheck"):
        rig.call_plain(BIN + "/pg_amcheck", "-h", rig.notes, "-U", "u", "--install-missing", "--heapallindexed", "--all")


class Client(threading.Thread):
    """psql, one transaction after another; a number counts when psql has printed that it is committed."""

    def __init__(self, rig, which, first):
        super().__init__(daemon=True)
        self.which, self.number, self.noted = which, first, []
        self.rig, self.cuts = rig, rig.cuts
        # psql keeps its answers in memory if they go to a pipe.
        command = ["stdbuf", "-oL", "psql", "-h", rig.notes, "-U", "u", "-d", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        self.psql = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.start()

    def run(self):
        try:
            while True:
                name = f"{self.which}:{self.number}"
                lines = [f"begin; insert into t values ('{name}', repeat('p', {self.number * 7 % 3000}));",
                         f"update counts set n = n + 1 where which = {self.which};", f"commit; select '{name}';"]
                if self.number % 10 == 9:
                    lines.insert(1, f"savepoint s; delete from t where name like '{self.which}:%'; rollback to s;")
                self.psql.stdin.write("\n".join(lines) + "\n")
                self.psql.stdin.flush()
                if self.psql.stdout.readline() != name + "\n" or self.rig.cuts != self.cuts:
                    break
                self.noted.append(name)
                self.number += 1
        except OSError:
            pass
        self.psql.kill()
        self.psql.wait()


def script(match, *settings):
    def case(rig):
        prepare(rig, match, *settings)
        program = start(rig)
        sql(rig, "create table t(n int primary key, v text)", "create index on t(v)",
            "insert into t select n, md5(n::text) from generate_series(1, 20000) n", "checkpoint",
            "update t set v = v || n where n % 3 = 0", "delete from t where n % 7 = 0", "vacuum full t", "cluster t using t_pkey",
            "create table u as select * from t where n < 1000", "create unlogged table x as select 1", "reindex table t",
            "create database other", "drop table u", "truncate x")
        rig.call_plain(BIN + "/pgbench", "-h", rig.notes, "-U", "u", "-i", "-q", "-s", "1", "postgres")
        # A fixed seed and one client: the same transactions on both sides.
        rig.call_plain(BIN + "/pgbench", "-h", rig.notes, "-U", "u", "-n", "-t", "300", "--random-seed=5", "postgres")
        asked = ("select count(*), sum(n), md5(string_agg(n || v, ',' order by n)) from t", "select sum(abalance) from pgbench_accounts",
                 "select sum(delta), count(*) from pgbench_history", "select datname from pg_database order by 1")
        found = sql(rig, *asked)
        program.stop()
        pages(rig)
        # Without run, and with run again.
        for plain in (True, False):
            program = start(rig, plain)
            need(sql(rig, *asked) == found, "a start changed the data")
            program.stop()
        program = start(rig)
        amcheck(rig)
        program.stop()
        return {"found": found}

    return case


def crashed(match, *settings):
    def case(rig):
        prepare(rig, match, *settings)
        program = start(rig)
        sql(rig, "create table t(name text primary key, v text)", "create table counts(which int primary key, n int)",
            "insert into counts select n, 0 from generate_series(0, 3) n")
        program.stop()
        noted, firsts = [], [0] * 4
        for number, kind in enumerate(rig.kinds(4)):
            program = start(rig)
            check(rig, noted)
            clients = [Client(rig, which, first) for which, first in enumerate(firsts)]
            await_true("nothing is committed", lambda: min(len(it.noted) for it in clients) >= 60 or not program.running())
            time.sleep(rig.rng.random() * 0.2)
            need(program.running(), program.words())
            rig.last_kind = kind
            rig.crash(program, kind)
            for client in clients:
                client.join(30)
                need(not client.is_alive(), "a client does not end")
                noted += client.noted
            # The number under way may be committed or not.
            firsts = [client.number + 1 for client in clients]
            if number % 2 == 0:
                rig.recover()
        program = start(rig)
        check(rig, noted)
        amcheck(rig)
        program.stop()
        pages(rig)
        return {"crashes": 4}

    return case


def check(rig, noted):
    found = dict(line.split("|") for line in sql(rig, "select name, length(v) from t").split())
    lost = [it for it in noted if found.get(it) != str(int(it.split(":")[1]) * 7 % 3000)]
    need(not lost, f"after {rig.last_kind}: {len(lost)} of {len(noted)} committed rows are lost: {lost[:5]}")
    counts = dict(line.split("|") for line in sql(rig, "select which, n from counts").split())
    for which, count in counts.items():
        rows = sum(it.startswith(which + ":") for it in found)
        need(int(count) == rows, f"client {which} has {rows} rows, and counted {count}: a transaction is there by half")


CASES = {
    "script, WAL": script(WAL),
    "script, all files": script(ALL),
    "crash, WAL, own syncs": crashed(WAL),
    "crash, WAL, own syncs, open_datasync": crashed(WAL, "wal_sync_method = open_datasync"),
    "crash, WAL, own syncs, no recycling": crashed(WAL, "wal_recycle = off", "wal_init_zero = off"),
    "crash, all files, own syncs": crashed(ALL),
    "crash, all files, own syncs, fsync": crashed(ALL, "wal_sync_method = fsync", "full_page_writes = on", "wal_compression = on"),
}
SHORT = ()
