//! `fusermount3` of libfuse: it opens `/dev/fuse`, mounts, and sends the descriptor over a socket (libfuse,
//! `util/fusermount.c`).

use super::error::{MountError, UnmountError};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

const HELPER: &str = "fusermount3";
/// Where the helper finds the number of its end of the socket.
const SOCKET: &str = "_FUSE_COMMFD";

/// Mounts by the helper; the descriptor is the connection.
pub(crate) fn mount(place: &Path, options: &str) -> Result<OwnedFd, MountError> {
    mount_by(HELPER, place, options)
}

fn mount_by(helper: &str, place: &Path, options: &str) -> Result<OwnedFd, MountError> {
    let (own, theirs) = UnixStream::pair().map_err(MountError::NoHelper)?;
    // A duplicate stays open over exec. A child that another thread starts meanwhile has it, too: so the end of the socket
    // says nothing here, and the end of the helper does.
    let passed = rustix::io::dup(&theirs).map_err(|errno| MountError::NoHelper(errno.into()))?;
    let mut command = Command::new(helper);
    command.args(["-o", options, "--"]).arg(place);
    command.env(SOCKET, passed.as_raw_fd().to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(MountError::NoHelper)?;
    drop((passed, theirs));
    let mut message = String::new();
    let said = child
        .stderr
        .take()
        .map(|mut pipe| pipe.read_to_string(&mut message));
    let status = child.wait().map_err(MountError::NoHelper)?;
    let failed = |message: String| MountError::Helper {
        place: place.into(),
        message,
    };
    if !status.success() || said.is_some_and(|said| said.is_err()) {
        return Err(failed(format!("{} ({status})", message.trim())));
    }
    receive(&own).map_err(|error| failed(format!("it sent no descriptor: {error}")))
}

/// The descriptor that the helper has sent before it ended.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Unmounts by the helper.
pub(crate) fn unmount(place: &Path, is_lazy: bool) -> Result<(), UnmountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if is_lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(place).output();
    let output = output.map_err(|error| UnmountError::Refused(place.into(), error))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    match message.contains("busy") {
        true => Err(UnmountError::Busy(place.into())),
        false => Err(UnmountError::Refused(place.into(), io::Error::other(message))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn script(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("helper");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("own file");
        let path = path.to_str().expect("plain").to_string();
        (dir, path)
    }

    #[test]
    fn what_the_helper_says_is_told() {
        let (_dir, helper) = script("echo no such luck >&2; exit 1");
        let error = mount_by(&helper, Path::new("/mnt/x"), "rw").expect_err("it refused");
        let text = error.to_string();
        assert!(text.contains("/mnt/x") && text.contains("no such luck"), "{text}");
    }

    #[test]
    fn a_helper_that_sends_nothing_is_an_error() {
        let (_dir, helper) = script("exit 0");
        let error = mount_by(&helper, Path::new("/mnt/x"), "rw").expect_err("there is no descriptor");
        assert!(error.to_string().contains("no descriptor"), "{error}");
    }

    #[test]
    fn a_missing_helper_names_its_package() {
        let error = mount_by("/nonexistent/helper", Path::new("/mnt/x"), "rw").expect_err("there is none");
        assert!(error.to_string().contains("package fuse3"), "{error}");
    }

    #[test]
    fn the_descriptor_and_the_options_pass() {
        let (dir, helper) = script(
            "echo \"$@\" > \"$0.said\"\npython3 -c 'import socket, os, array\ns = socket.socket(fileno=int(os.environ[\"_FUSE_COMMFD\"]))\n\
             f = os.open(os.environ.get(\"SENT\", \"/dev/null\"), os.O_RDWR)\n\
             s.sendmsg([b\"\\0\"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array(\"i\", [f]))])'",
        );
        let descriptor = mount_by(&helper, Path::new("/mnt/x y"), "rw,fsname=a").expect("it was sent");
        let target = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        assert_eq!(target.expect("it is open"), Path::new("/dev/null"));
        let said = std::fs::read_to_string(dir.path().join("helper.said")).expect("it ran");
        assert_eq!(said.trim(), "-o rw,fsname=a -- /mnt/x y");
    }
}
