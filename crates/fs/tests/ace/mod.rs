//! The calls of ACE on its names, and what each needs before it.

use fs::files::{Body, Files};
use fs::format::ROOT_INODE;
use fs::inode::Time;
use fs::op::{Action, Allocation, Entry, Op, Target};

/// A name below the root.
pub type Path = &'static str;

/// A call.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Create(Path),
    Mkdir(Path),
    Symlink(Path),
    Link(Path, Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path),
    /// A write from an offset on. Files have 9000 bytes.
    Write(Path, u64),
    Truncate(Path, u64),
    Allocate(Path, Allocation, bool),
    SetAttribute(Path),
    RemoveAttribute(Path),
}

use Allocation::{Hole, Reserve, Zeros};
use Call::{
    Allocate, Create, Link, Mkdir, RemoveAttribute, Rename, Rmdir, SetAttribute, Symlink, Truncate, Unlink,
    Write,
};

/// All of them.
pub const CALLS: [Call; 54] = [
    Create("foo"),
    Create("A/foo"),
    Create("A/bar"),
    Create("B/foo"),
    Mkdir("A"),
    Mkdir("B"),
    Mkdir("A/C"),
    Symlink("foo"),
    Symlink("A/bar"),
    Link("foo", "bar"),
    Link("foo", "A/bar"),
    Link("A/foo", "A/bar"),
    Link("A/foo", "B/foo"),
    Unlink("foo"),
    Unlink("bar"),
    Unlink("A/foo"),
    Unlink("A/bar"),
    Unlink("B/foo"),
    Rmdir("A"),
    Rmdir("B"),
    Rmdir("A/C"),
    Rename("foo", "bar"),
    Rename("bar", "foo"),
    Rename("foo", "A/bar"),
    Rename("A/foo", "A/bar"),
    Rename("A/bar", "A/foo"),
    Rename("A/foo", "B/foo"),
    Rename("B/foo", "A/foo"),
    Rename("A", "B"),
    Rename("B", "A"),
    Rename("A/C", "B/C"),
    Rename("A/C", "B"),
    Write("foo", 9000),
    Write("foo", 0),
    Write("foo", 8000),
    Write("foo", 20_000),
    Write("A/foo", 9000),
    Write("A/foo", 100),
    Truncate("foo", 0),
    Truncate("foo", 4096),
    Truncate("foo", 2500),
    Truncate("foo", 15_000),
    Truncate("A/foo", 2500),
    Allocate("foo", Reserve, false),
    Allocate("foo", Reserve, true),
    Allocate("foo", Zeros, false),
    Allocate("foo", Zeros, true),
    Allocate("foo", Hole, true),
    Allocate("A/foo", Hole, true),
    Allocate("A/foo", Reserve, false),
    SetAttribute("foo"),
    SetAttribute("A"),
    RemoveAttribute("foo"),
    RemoveAttribute("A"),
];

/// Inodes that an operation needs a lease of.
pub fn inodes_of(op: &Op<'_>) -> Vec<u64> {
    let mut inodes = vec![op.inode];
    match &op.action {
        Action::Create { entry, .. } | Action::Link { entry } | Action::Unlink { entry, .. } => {
            inodes.push(entry.parent);
        }
        Action::Rename { from, to, target } => {
            inodes.extend([from.parent, to.parent]);
            if let Target::Replaced { inode, .. } | Target::Exchanged { inode } = target {
                inodes.push(*inode);
            }
        }
        _ => {}
    }
    inodes
}

/// Makes operations of calls.
#[derive(Default)]
pub struct Script {
    inodes: u64,
    seconds: i64,
}

/// Operations of one call, and the files after them.
struct Scene<'s> {
    script: &'s mut Script,
    files: Files,
    ops: Vec<Op<'static>>,
}

impl Script {
    /// What a call needs to be possible, then the call.
    pub fn ops(&mut self, call: &Call, files: Files) -> Vec<Op<'static>> {
        let ops = Vec::new();
        let mut scene = Scene {
            script: self,
            files,
            ops,
        };
        scene.call(*call);
        scene.ops
    }
}

impl Scene<'_> {
    fn add(&mut self, inode: u64, action: Action<'static>) {
        self.script.seconds += 1;
        let time = Time {
            seconds: self.script.seconds,
            ns: 0,
        };
        let op = Op { inode, time, action };
        let done = self.files.apply(&op, &crate::program::block);
        done.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        self.ops.push(op);
    }

    fn find(&self, path: Path) -> Option<u64> {
        let mut names = path.split('/');
        names.try_fold(ROOT_INODE, |directory, name| {
            self.files.lookup(directory, name.as_bytes()).ok()
        })
    }

    /// The directory of a path, which is made if it is not there.
    fn parent(&mut self, path: Path) -> Entry<'static> {
        let Some((directory, name)) = path.split_once('/') else {
            return Entry::new(ROOT_INODE, path.as_bytes());
        };
        self.need_directory(directory);
        let parent = self.find(directory).expect("it was made");
        Entry::new(parent, name.as_bytes())
    }

    fn is_directory(&self, inode: u64) -> bool {
        self.files.inode(inode).is_some_and(|inode| inode.is_directory())
    }

    fn make(&mut self, path: Path, mode: u32, target: &'static [u8]) {
        let entry = self.parent(path);
        self.script.inodes += 1;
        let inode = 9 + self.script.inodes;
        let create = Action::Create {
            entry,
            mode,
            uid: 0,
            gid: 0,
            device: 0,
            target: target.into(),
        };
        self.add(inode, create);
    }

    fn need_directory(&mut self, path: Path) {
        if self.find(path).is_some_and(|inode| !self.is_directory(inode)) {
            self.clear(path);
        }
        if self.find(path).is_none() {
            self.make(path, 0o040_755, b"");
        }
    }

    /// A file of 9000 bytes.
    fn need_file(&mut self, path: Path) -> u64 {
        let is_file = |files: &Files, inode: u64| {
            let found = files.inode(inode);
            found.is_some_and(|inode| matches!(inode.body, Body::File(_)))
        };
        if self.find(path).is_some_and(|inode| !is_file(&self.files, inode)) {
            self.clear(path);
        }
        if self.find(path).is_none() {
            self.make(path, 0o100_644, b"");
            let inode = self.find(path).expect("it was made");
            self.write(inode, 0, 9000);
        }
        self.find(path).expect("it was made")
    }

    fn write(&mut self, inode: u64, offset: u64, bytes: usize) {
        let data = vec![self.script.seconds as u8 | 1; bytes].into();
        self.add(inode, Action::Write { offset, data });
    }

    /// Nothing is below a directory.
    fn empty(&mut self, directory: u64) {
        let found = self.files.inode(directory).map(|inode| inode.body.clone());
        let Some(Body::Directory { entries, .. }) = found else {
            return;
        };
        for (name, inode) in entries {
            self.remove(Entry::new(directory, name), inode);
        }
    }

    fn remove(&mut self, entry: Entry<'static>, inode: u64) {
        self.empty(inode);
        let is_directory = self.is_directory(inode);
        let fate = self.files.fate(inode, false);
        let unlink = Action::Unlink {
            entry,
            is_directory,
            fate,
        };
        self.add(inode, unlink);
    }

    /// Nothing is at a path.
    fn clear(&mut self, path: Path) {
        let entry = self.parent(path);
        if let Some(inode) = self.find(path) {
            self.remove(entry, inode);
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Create(path) | Mkdir(path) | Symlink(path) => {
                self.clear(path);
                match call {
                    Create(_) => self.make(path, 0o100_644, b""),
                    Mkdir(_) => self.make(path, 0o040_755, b""),
                    _ => self.make(path, 0o120_777, b"somewhere"),
                }
            }
            Link(from, to) => {
                let inode = self.need_file(from);
                self.clear(to);
                let entry = self.parent(to);
                self.add(inode, Action::Link { entry });
            }
            Unlink(path) => {
                let inode = self.need_file(path);
                let entry = self.parent(path);
                self.remove(entry, inode);
            }
            Rmdir(path) => {
                self.need_directory(path);
                let inode = self.find(path).expect("it was made");
                let entry = self.parent(path);
                self.remove(entry, inode);
            }
            Rename(from, to) => self.rename(from, to),
            Write(path, offset) => {
                let inode = self.need_file(path);
                self.write(inode, offset, 3000);
            }
            Truncate(path, size) => {
                let inode = self.need_file(path);
                self.add(inode, Action::Truncate { size });
            }
            Allocate(path, what, keeps_size) => {
                let inode = self.need_file(path);
                let (offset, bytes) = (3000, 8000);
                let allocate = Action::Allocate {
                    offset,
                    bytes,
                    what,
                    keeps_size,
                };
                self.add(inode, allocate);
            }
            SetAttribute(path) => self.attribute(path, Some(b"value")),
            RemoveAttribute(path) => {
                let inode = self.owner(path);
                if self.files.attribute(inode, b"user.name", 100).is_err() {
                    self.attribute(path, Some(b"old"));
                }
                self.attribute(path, None);
            }
        }
    }

    fn owner(&mut self, path: Path) -> u64 {
        match path {
            "A" => {
                self.need_directory(path);
                self.find(path).expect("it was made")
            }
            _ => self.need_file(path),
        }
    }

    fn attribute(&mut self, path: Path, value: Option<&'static [u8]>) {
        let inode = self.owner(path);
        let name = b"user.name"[..].into();
        let value = value.map(Into::into);
        self.add(inode, Action::Attribute { name, value });
    }

    fn rename(&mut self, from: Path, to: Path) {
        let is_directory = !from.ends_with("foo") && !from.ends_with("bar");
        let entry = self.parent(to);
        match is_directory {
            true => self.need_directory(from),
            false => drop(self.need_file(from)),
        }
        let inode = self.find(from).expect("it was made");
        // What is replaced is of the same type, and empty.
        let is_same = |scene: &Self, other: u64| scene.is_directory(other) == is_directory && other != inode;
        match self.find(to) {
            Some(other) if !is_same(self, other) => self.clear(to),
            Some(other) => self.empty(other),
            None => {}
        }
        let target = self.find(to).map_or(Target::Free, |inode| Target::Replaced {
            inode,
            fate: self.files.fate(inode, false),
        });
        let from = self.parent(from);
        let inode = self.files.lookup(from.parent, &from.name).expect("it was made");
        let to = entry;
        self.add(inode, Action::Rename { from, to, target });
    }
}
