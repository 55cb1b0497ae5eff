//! A target that the sessions of a test share.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use core::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};

use wire::nvme::{Access, Target};

/// An act of another core: after so many locked steps, or before the next one.
struct Other {
    after: Option<u32>,
    happens: Box<dyn FnOnce()>,
}

thread_local! {
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

/// A target behind a lock that nobody waits for.
pub struct Offer(Mutex<Target>);

impl Offer {
    pub fn new(target: Target) -> Arc<Self> {
        Arc::new(Self(Mutex::new(target)))
    }

    pub fn borrow(&self) -> MutexGuard<'_, Target> {
        self.borrow_mut()
    }

    pub fn borrow_mut(&self) -> MutexGuard<'_, Target> {
        self.0.try_lock().expect("nobody works with the target now")
    }

    /// Something happens right before the target is asked for the next time.
    pub fn meanwhile(&self, happens: impl FnOnce() + 'static) {
        let happens = Box::new(happens);
        OTHER.set(Some(Other { after: None, happens }));
    }

    /// Something happens after the next locked step and so many more.
    pub fn after(&self, steps: u32, happens: impl FnOnce() + 'static) {
        let (after, happens) = (Some(steps), Box::new(happens));
        OTHER.set(Some(Other { after, happens }));
    }

    /// True if all that is to happen has happened.
    pub fn has_happened(&self) -> bool {
        OTHER.with_borrow(Option::is_none)
    }
}

impl Access for Offer {
    fn with(&self, f: &mut dyn FnMut(&mut Target)) {
        let mut other = OTHER.take();
        if let Some(Other { happens, .. }) = other.take_if(|other| other.after.is_none()) {
            happens();
        }
        f(&mut self.borrow_mut());
        match other {
            Some(Other {
                after: Some(0),
                happens,
            }) => happens(),
            Some(Other {
                after: Some(steps),
                happens,
            }) => OTHER.set(Some(Other {
                after: Some(steps - 1),
                happens,
            })),
            _ => {}
        }
    }

    fn generation(&self) -> u64 {
        self.borrow().generation()
    }
}
