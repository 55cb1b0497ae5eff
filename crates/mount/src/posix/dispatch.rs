//! Requests of the kernel, each to what serves it.

use super::server::{Changed, Place, Server, Way};
use crate::engine::{Failure, Mode as EngineMode, Pins, Turn};
use fs::lease::Mode;
use fuse::abi::{Errno, Operation, Reply};
use fuse::transport::Call;

impl Server {
    /// Serves a call, or gives it to a worker.
    pub fn serve(&self, call: Call, place: Place, pins: &Pins) {
        if place == Place::Transport && self.is_slow && is_long(&call.operation()) {
            return self.queue.serve(call, Pins::new());
        }
        self.answer_to(call, Way { place, pins });
        self.engine.unpin(pins);
    }

    fn answer_to(&self, call: Call, way: Way<'_>) {
        match call.operation() {
            Operation::Forget(argument) => {
                self.forget(&[(call.header().nodeid, argument.nlookup)]);
                call.reply(&Reply::Empty);
            }
            Operation::BatchForget(forgets) => {
                let forgets: Vec<_> = forgets.map(|one| (one.nodeid, one.nlookup)).collect();
                self.forget(&forgets);
                call.reply(&Reply::Empty);
            }
            Operation::Lookup { .. } => self.look_up(call, way),
            Operation::Getattr(_) => self.attributes(call, way),
            Operation::Statx(_) => self.all_attributes(call, way),
            Operation::Readlink => self.read_link(call, way),
            Operation::Read(_) => self.read(call, way),
            Operation::Readdir(_) => self.list(call, way, false),
            Operation::Readdirplus(_) => self.list(call, way, true),
            Operation::Lseek(_) => self.seek(call, way),
            Operation::Statfs => self.room(call),
            Operation::Getxattr { .. } => self.attribute(call, way),
            Operation::Listxattr(_) => self.attribute_names(call, way),
            Operation::Ioctl { .. } => self.control(call, way),
            // Each call is durable before it is answered: the kernel need not ask again.
            Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs
                if self.engine.mode() == EngineMode::Sync =>
            {
                call.fail(Errno::NOSYS)
            }
            Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs => self.sync(call),
            Operation::Write { .. } => self.write(call, way),
            Operation::Fallocate(_) => self.allocate(call, way),
            Operation::Destroy => call.reply(&Reply::Empty),
            // The kernel opens without asking, checks permissions itself, keeps the locks, and copies by reading and writing.
            Operation::Open(_)
            | Operation::Opendir(_)
            | Operation::Create { .. }
            | Operation::Flush(_)
            | Operation::Access(_)
            | Operation::CopyFileRange(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Poll(_) => call.fail(Errno::NOSYS),
            _ => self.change_by(call, way, Self::changed),
        }
    }

    fn sync(&self, call: Call) {
        let newest = self.engine.turn(|turn| turn.newest());
        self.answer_durable(call, newest, Reply::Empty);
    }

    /// The kernel has no use for these inodes any more. Those without a name go.
    fn forget(&self, forgets: &[(u64, u64)]) {
        let is_done = self.engine.turn(|turn| {
            for (inode, count) in forgets {
                turn.forget(*inode, *count)?;
            }
            turn.release_lost()
        });
        match is_done {
            Ok(false) => {}
            Ok(true) => self.engine.write_behind(),
            // Those that are left go with the next ones, or when the file system is opened again.
            Err(_) => self.engine.write_behind(),
        }
    }

    /// One change, under the lock.
    fn changed(turn: &mut Turn<'_>, call: &Call, way: Way<'_>) -> Result<Changed, Failure> {
        let header = call.header();
        if let Operation::Setattr(_) | Operation::Setxattr { .. } | Operation::Removexattr { .. } =
            call.operation()
        {
            // The kernel keeps dirty pages back while it truncates.
            way.may(turn, &[(header.nodeid, Mode::Exclusive)], true)?;
        }
        match call.operation() {
            Operation::Setattr(argument) => Self::set_attributes(turn, header, &argument),
            Operation::Setxattr {
                argument,
                name,
                value,
            } => Self::set_attribute(turn, header, (name, value), &argument),
            Operation::Removexattr { name } => Self::remove_attribute(turn, header, name),
            operation => Self::change_names(turn, (header, way), operation),
        }
    }
}

/// Whether an operation may wait for a device with files.
fn is_long(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Read(_) | Operation::Fallocate(_) | Operation::Readlink
    )
}
