//! A mailbox that forgets the wakes so far after it was emptied: a wake that came meanwhile is lost.

use crate::sync;
#[allow(dead_code, reason = "one step is replaced")]
#[path = "../../../src/mailbox.rs"]
mod shipped;

mod mailbox {
    use super::shipped;
    use crate::sync::mpsc::TryRecvError;
    use crate::sync::{Arc, Wake};

    pub(super) struct Mailbox<T>(shipped::Mailbox<T>);

    impl<T> Mailbox<T> {
        pub fn new() -> std::io::Result<(Self, shipped::Address<T>)> {
            let (mailbox, address) = shipped::Mailbox::new()?;
            Ok((Self(mailbox), address))
        }

        pub fn wake(&self) -> &Arc<Wake> {
            self.0.wake()
        }

        pub fn open(&self) {}

        pub fn next(&self) -> Result<T, TryRecvError> {
            self.0.next().inspect_err(|_| self.0.wake().clear())
        }
    }
}

scenario!();
