//! A target that wakes its cores before it stores the new generation: a core looks, sees the old one, and sleeps.

mod nvme {
    use crate::sync::{Arc, AtomicU64, Mutex, Ordering::SeqCst, Wake};
    use wire::Protocol;
    use wire::nvme::{Access, Target};

    pub(super) struct NvmeTarget {
        target: Mutex<Target>,
        generation: AtomicU64,
        cores: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
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
            if generation != self.generation.load(SeqCst) {
                for core in &*self.cores.lock().expect("no panic") {
                    core();
                }
                self.generation.store(generation, SeqCst);
            }
        }

        fn generation(&self) -> u64 {
            self.generation.load(SeqCst)
        }

        fn watch(&self, wake: Box<dyn Fn() + Send + Sync>) {
            self.cores.lock().expect("no panic").push(wake);
        }
    }

    #[derive(Default)]
    pub(super) struct Offers(Vec<Arc<dyn Protocol>>, u64);

    impl Offers {
        pub fn add(&mut self, protocol: Arc<dyn Protocol>, wake: Arc<Wake>) {
            protocol.watch(Box::new(move || wake.wake()));
            self.0.push(protocol);
        }

        pub fn have_changed(&mut self) -> bool {
            let generation = self.0.iter().map(|protocol| protocol.generation()).sum();
            std::mem::replace(&mut self.1, generation) != generation
        }
    }
}

scenario!();
