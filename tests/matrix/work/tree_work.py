"""A directory with files of all kinds, the same each time; `change` alters, adds and removes some."""
import os
import random
import sys


def content(rng, bytes_max):
    return rng.randbytes(rng.randrange(bytes_max))


def make(top, _):
    rng = random.Random(3)
    for number in range(120):
        directory = f"{top}/d{number % 6}/e{number % 4}"
        os.makedirs(directory, exist_ok=True)
        with open(f"{directory}/file{number}.{('dat', 'log', 'txt')[number % 3]}", "wb") as file:
            file.write(content(rng, 30_000))
    for name in ("a.dat", "b.log", "large.dat"):
        with open(f"{top}/{name}", "wb") as file:
            file.write(content(rng, 30_000) if name != "large.dat" else rng.randbytes(6_000_000))
    with open(f"{top}/holes.dat", "wb") as file:
        file.truncate(3_000_000)
        file.seek(1_000_000)
        file.write(b"between holes")
    open(f"{top}/empty", "wb").close()
    os.symlink("a.dat", f"{top}/symbolic")
    os.link(f"{top}/b.log", f"{top}/d0/hard.log")
    os.chmod(f"{top}/b.log", 0o640)
    os.mkdir(f"{top}/nothing")
    os.mkfifo(f"{top}/pipe") if len(sys.argv) > 4 else None


def change(top, seed):
    rng = random.Random(int(seed))
    names = sorted(os.path.join(directory, name) for directory, _, files in os.walk(top) for name in files)
    names = [it for it in names if not os.path.islink(it)]
    for name in rng.sample(names, 30):
        act = rng.randrange(4)
        if act == 0 and not name.startswith((f"{top}/a", f"{top}/b")):
            os.unlink(name)
        elif act == 1:
            with open(name, "ab") as file:
                file.write(content(rng, 9_000))
        elif act == 2:
            with open(name, "r+b") as file:
                file.seek(rng.randrange(os.path.getsize(name) + 1))
                file.write(content(rng, 500))
        else:
            with open(name, "r+b") as file:
                file.truncate(os.path.getsize(name) // 2)
    with open(f"{top}/large.dat", "r+b") as file:
        file.seek(rng.randrange(5_000_000))
        file.write(rng.randbytes(200_000))
    with open(f"{top}/new{seed}.dat", "wb") as file:
        file.write(rng.randbytes(50_000))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
