"""git: commits with core.fsync=all, branches, merges, gc and fsck; crashes between acknowledged commits."""
import os
import subprocess

from rig import need
from work import WORK

NEEDS = ["git", "sh"]
# What a user has who wants durable commits, and no user's own settings.
ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
       "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_AUTHOR_DATE": "1700000000 +0000",
       "GIT_COMMITTER_DATE": "1700000000 +0000"}
LOOSE = ["*"]
# Names of objects, packs and references, as one would choose them.
NAMED = ["*/.git/objects/*", "*/.git/refs/*", "*.pack", "*.idx", "packed-refs*", "index*"]


def version():
    return subprocess.run(["git", "--version"], capture_output=True, text=True).stdout.split()[2]


def git(rig, *words, run=True, **options):
    call = rig.call if run else rig.call_plain
    return call("git", *words, env=ENV, **options)


def checked(rig, directory):
    said = git(rig, "fsck", "--full", "--strict", "--no-dangling", run=False, cwd=directory)
    need("missing" not in said and "corrupt" not in said, said)
    return {
        "head": git(rig, "rev-parse", "HEAD", run=False, cwd=directory),
        "refs": git(rig, "for-each-ref", run=False, cwd=directory),
        "status": git(rig, "status", "--porcelain", run=False, cwd=directory),
        "tree": git(rig, "ls-tree", "-r", "HEAD", run=False, cwd=directory),
    }


def script(match, method="fsync"):
    def case(rig):
        rig.patterns = match
        rig.call("sh", WORK + "/git_work.sh", "repo", method, env=ENV)
        found = checked(rig, rig.files + "/repo")
        # Clones and fetches run several processes that write one pack.
        rig.call("git", "clone", "-q", "--no-local", "repo", "clone", env=ENV)
        rig.call("git", "clone", "-q", "--bare", "repo", "bare.git", env=ENV)
        rig.call("git", "-c", "core.fsync=all", "push", "-q", "../bare.git", "HEAD:refs/heads/pushed", env=ENV, cwd=rig.files + "/clone")
        found["clone"] = checked(rig, rig.files + "/clone")["tree"]
        found["bare"] = git(rig, "for-each-ref", run=False, cwd=rig.files + "/bare.git")
        return {**found, **rig.content("repo", skip=(".git",))}

    return case


def crashed(match, each):
    """`each`: every git is a run of its own. Otherwise a shell is under `run`, and starts them."""
    def case(rig):
        rig.patterns = match
        excused = set()
        git(rig, "init", "-q", "repo")
        for setting in ("core.fsync=all", "core.fsyncMethod=fsync", "gc.auto=60", "gc.autoDetach=false"):
            git(rig, "config", *setting.split("="), run=False, cwd=rig.files + "/repo")
        rig.call_plain("sync")
        prefix = [rig.switchyard, "run", "--area", rig.area, "--size", "128MiB", "--match", "*", "--"] if each and rig.with_run else []

        def load(first):
            command = ["sh", WORK + "/git_commits.sh", rig.files + "/repo", rig.notes + "/note", first, *prefix]
            return rig.start_plain(command, env=ENV) if each else rig.start(command, env=ENV)

        def check(lines, call):
            repo = rig.files + "/repo"
            # As git tells its user to do after a crash.
            for directory, _, names in os.walk(repo + "/.git"):
                for name in names:
                    if name.endswith(".lock"):
                        os.unlink(os.path.join(directory, name))
            call("git", "rev-parse", "HEAD", env=ENV, cwd=repo)
            checked(rig, repo)
            known = set(git(rig, "rev-list", "HEAD", run=False, cwd=repo).split())
            # git syncs no directory. A power cut may undo the last rename of a reference, which the next commit's syncs make durable.
            excused.update(lines[-1:] if rig.last_kind == "cut" else [])
            durable = [it for it in lines if it not in excused]
            lost = [it for it in durable if it.split()[1] not in known]
            need(not lost, f"{len(lost)} of {len(lines)} acknowledged commits are lost: {lost[:3]}")
            for line in durable[-3:]:
                number, commit = line.split()
                need(git(rig, "show", f"{commit}:f{int(number) % 7}", run=False, cwd=repo).startswith(number + "\n"), line)
            git(rig, "reset", "-q", "--hard", run=False, cwd=repo)

        return rig.crashes(4, load, check, enough=12)

    return case


CASES = {
    "script": script(LOOSE),
    "script, named files": script(NAMED),
    "script, batch": script(LOOSE, "batch"),
    "crash": crashed(LOOSE, False),
    "crash, each a run": crashed(LOOSE, True),
}
SHORT = ("script", "crash")
