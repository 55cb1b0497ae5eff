//! A core that stops and does not close its home: others go on sending connections to its mailbox.

files!();
#[allow(dead_code, reason = "no host is called")]
#[path = "../../../src/command.rs"]
mod command;
#[allow(dead_code, reason = "no check reads all counters")]
#[path = "../../../src/counters.rs"]
mod counters;
#[path = "../../../src/mailbox.rs"]
mod mailbox;
#[allow(dead_code, reason = "one step is replaced")]
#[path = "../../../src/steering.rs"]
mod shipped;

mod steering {
    pub(super) use super::shipped::{Clients, Here};
    use super::{Address, Command, Homes, Mutex, shipped};
    use std::ops::{Deref, DerefMut};
    use std::sync::Arc;

    pub(super) struct Steering(shipped::Steering);

    impl Steering {
        pub fn new(homes: Arc<Mutex<Homes>>, core: usize, siblings: Vec<Address<Command>>) -> Self {
            Self(shipped::Steering::new(homes, core, siblings))
        }

        pub fn close(&self) {}
    }

    impl Deref for Steering {
        type Target = shipped::Steering;

        fn deref(&self) -> &shipped::Steering {
            &self.0
        }
    }

    impl DerefMut for Steering {
        fn deref_mut(&mut self) -> &mut shipped::Steering {
            &mut self.0
        }
    }
}

scenario!();
