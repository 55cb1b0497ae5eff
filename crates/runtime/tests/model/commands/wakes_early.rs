//! An address that wakes the core before it leaves the command: the core may look, and sleep, in between.

mod mailbox {
    use crate::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
    use crate::sync::{Arc, Wake};

    pub(super) struct Address<T>(Sender<T>, Arc<Wake>);
    pub(super) struct Mailbox<T>(Receiver<T>, Arc<Wake>);

    impl<T> Address<T> {
        pub fn tell(&self, command: T) -> Result<(), SendError<T>> {
            self.1.wake();
            self.0.send(command)
        }
    }

    impl<T> Clone for Address<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone(), Arc::clone(&self.1))
        }
    }

    impl<T> Mailbox<T> {
        pub fn new() -> std::io::Result<(Self, Address<T>)> {
            let (sender, receiver) = channel();
            let wake = Arc::new(Wake::new()?);
            Ok((Self(receiver, Arc::clone(&wake)), Address(sender, wake)))
        }

        pub fn wake(&self) -> &Arc<Wake> {
            &self.1
        }

        pub fn open(&self) {
            self.1.clear();
        }

        pub fn next(&self) -> Result<T, TryRecvError> {
            self.0.try_recv()
        }
    }
}

scenario!();
