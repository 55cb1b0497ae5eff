//! A target that stores the new generation after it has let go of the lock: a session may have seen the fence there, and go on
//! with its old rights.

mod nvme {
    use crate::sync::{Arc, AtomicU64, Mutex, Ordering::SeqCst, Wake};
    use wire::nvme::{Access, Target};

    pub(super) struct NvmeTarget {
        target: Mutex<Target>,
        generation: AtomicU64,
        cores: Mutex<Vec<Arc<Wake>>>,
    }

    impl NvmeTarget {
        pub fn new(target: Target) -> Arc<Self> {
            Arc::new(Self {
                generation: AtomicU64::new(target.generation()),
                target: Mutex::new(target),
                cores: Mutex::new(Vec::new()),
            })
        }
    }

    impl Access for NvmeTarget {
        fn with(&self, f: &mut dyn FnMut(&mut Target)) {
            let mut target = self.target.lock().expect("no panic");
            f(&mut target);
            let generation = target.generation();
            drop(target);
            if generation != self.generation.load(SeqCst) {
                self.generation.store(generation, SeqCst);
                for core in &*self.cores.lock().expect("no panic") {
                    core.wake();
                }
            }
        }

        fn generation(&self) -> u64 {
            self.generation.load(SeqCst)
        }
    }

    #[derive(Default)]
    pub(super) struct Offers(Vec<Arc<NvmeTarget>>, u64);

    impl Offers {
        pub fn add(&mut self, target: Arc<NvmeTarget>, wake: Arc<Wake>) {
            target.cores.lock().expect("no panic").push(wake);
            self.0.push(target);
        }

        pub fn have_changed(&mut self) -> bool {
            let generation = self.0.iter().map(|target| target.generation()).sum();
            std::mem::replace(&mut self.1, generation) != generation
        }
    }
}

scenario!();
