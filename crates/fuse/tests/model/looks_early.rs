//! An answer that looks whether the thread is asleep, and is left in a second step: the thread may fall asleep in between.

mod answered {
    use crate::sync::{Mutex, Wake};

    #[derive(Default)]
    struct State {
        slots: Vec<u16>,
        is_asleep: bool,
        is_stopped: bool,
    }

    pub(super) struct Answered(Mutex<State>, Wake);

    pub(super) enum Next {
        Submit,
        Sleep,
        Stop,
    }

    impl Answered {
        pub fn new(_: usize, wake: Wake) -> Self {
            Self(Mutex::new(State::default()), wake)
        }

        pub fn wake(&self) -> &Wake {
            &self.1
        }

        pub fn add(&self, slot: u16) {
            let was_asleep = std::mem::take(&mut self.0.lock().expect("no panic").is_asleep);
            self.0.lock().expect("no panic").slots.push(slot);
            if was_asleep {
                self.1.wake();
            }
        }

        pub fn stop(&self) {
            self.0.lock().expect("no panic").is_stopped = true;
            self.1.wake();
        }

        pub fn take(&self, slots: &mut Vec<u16>) -> Next {
            let mut state = self.0.lock().expect("no panic");
            if state.is_stopped {
                return Next::Stop;
            }
            std::mem::swap(&mut state.slots, slots);
            state.is_asleep = slots.is_empty();
            if state.is_asleep {
                Next::Sleep
            } else {
                Next::Submit
            }
        }

        pub fn awake(&self) {
            self.0.lock().expect("no panic").is_asleep = false;
        }
    }
}

crate::scenario!();
