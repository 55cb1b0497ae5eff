//! The way to the kernel, besides answers.

use fuse::abi::Notification;
use fuse::transport::Notifier;
use os::sync::{Arc, Mutex, PoisonError};

/// The kernel, to which notifications go from the session's start on.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<Mutex<Option<Notifier>>>);

impl Kernel {
    pub fn set(&self, notifier: Notifier) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(notifier);
    }

    /// Refused if the kernel does not know the inode any more, or the session ends.
    pub fn notify(&self, notification: &Notification<'_>) {
        self.try_notify(notification);
    }

    /// True if the kernel takes it.
    pub fn try_notify(&self, notification: &Notification<'_>) -> bool {
        let notifier = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        notifier.is_some_and(|notifier| notifier.notify(notification).is_ok())
    }
}
