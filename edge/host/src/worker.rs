//! The life of a thread's instance.
//!
//! A thread has one instance that serves all its requests, many at a time. It ends when it traps,
//! when it computes without a pause or when nothing comes of it in time; a new one takes its place.
//! When only one of its requests takes too long, or its memory is nearly used up, it retires: it
//! finishes what it has while its successor takes what comes. An instance is never a record: what
//! it knows is a cache.
//!
//! `wasmtime_wasi_http`'s `ProxyHandler` makes another instance whenever the first is busy for a
//! moment, with caches of its own; here there is one. A reload lets it retire in the same way.

use crate::{
    config::ms,
    gauge::Inside,
    instance::{Maker, StoreData},
    metrics::{Metrics, count},
};
use futures_channel::oneshot;
use futures_util::{
    stream::{FuturesUnordered, Stream},
    task::AtomicWaker,
};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Sleep, sleep},
};
use wasmtime::{
    AsContextMut, Store,
    component::{Accessor, Func},
};
use wasmtime_wasi_http::{
    WasiBody, WasiHttpView,
    handler::{Prepared, Proxy},
    p3::bindings::Service,
};

/// Instances of one thread, those included that finish their last requests.
const MAX_LIVE_INSTANCES: usize = 4;

/// A retired instance may still send its answers for this time.
const DRAIN_MS: u64 = 30_000;

/// Beyond the requests' own time, before the instance is ended from outside.
const EXPIRY_SLACK_MS: u64 = 500;

/// Rest after an instance could not be made.
const REST_MS: u64 = 100;

/// A request on its way to the instance.
pub(crate) struct Job {
    pub(crate) request: http::Request<WasiBody>,
    pub(crate) answer: oneshot::Sender<wasmtime::Result<http::Response<WasiBody>>>,
    /// Its place in flight, taken until the component is done with it.
    pub(crate) place: Inside,
}

/// Requests of a thread, taken by the instance that does not retire.
type Queue = Arc<Mutex<mpsc::UnboundedReceiver<Job>>>;

/// What is known of an instance outside its store.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Epochs in which it computed since its event loop last ran.
    computing_ticks: AtomicU64,
    memory_bytes: AtomicUsize,
    /// Requests without an answer.
    running: AtomicUsize,
    /// When the last request came, or the retirement.
    since: Mutex<Option<Instant>>,
    retired: AtomicBool,
    /// Told when the successor may come.
    retirement: Notify,
    /// The instance's own event loop, which must see that it has retired.
    event_loop: AtomicWaker,
}

impl Life {
    /// Counts an epoch of computing; tells how many there were before in a row.
    pub(crate) fn computed_a_tick(&self) -> u64 {
        self.computing_ticks.fetch_add(1, Relaxed)
    }

    pub(crate) fn has_memory(&self, bytes: usize) {
        self.memory_bytes.store(bytes, Relaxed);
    }

    fn mark(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn retire(&self) {
        if !self.retired.swap(true, Relaxed) {
            self.mark();
            self.retirement.notify_one();
            self.event_loop.wake();
        }
    }

    /// When the instance is ended if nothing changes.
    fn deadline(&self, request_time: Duration) -> Option<Instant> {
        let time = if self.running.load(Relaxed) > 0 {
            request_time
        } else if self.retired.load(Relaxed) {
            ms(DRAIN_MS)
        } else {
            // Idle, or sending answers: event streams may go on.
            return None;
        };
        self.since.lock().unwrap_or_else(PoisonError::into_inner).and_then(|since| since.checked_add(time))
    }
}

/// Keeps an instance alive for the requests in the queue, one after the other, for ever.
pub(crate) async fn keep(maker: Maker, queue: mpsc::UnboundedReceiver<Job>) {
    let queue = Arc::new(Mutex::new(queue));
    let places = Arc::new(Semaphore::new(MAX_LIVE_INSTANCES));
    let mut component = maker.component.clone();
    // After a reload, the instance that serves until its successor is there.
    let mut before: Option<Arc<Life>> = None;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let life = Arc::new(Life::default());
        let compiled = component.borrow_and_update().clone();
        match maker.instantiate(&compiled, &life).await {
            Ok((store, service)) => {
                count(&maker.metrics.instances);
                count(&maker.metrics.instances_live);
                let limits = &maker.limits;
                let worker = Worker {
                    queue: queue.clone(),
                    life: life.clone(),
                    request_time: ms(limits.request_timeout_ms),
                    retire_bytes: limits.max_memory_bytes / 4 * 3,
                    metrics: maker.metrics.clone(),
                    _place: place,
                };
                if let Some(before) = before.take() {
                    before.retire();
                }
                tokio::spawn(worker.run(store, service));
                tokio::select! {
                    () = life.retirement.notified() => {}
                    // Another component. Without a server there is no other.
                    Ok(()) = component.changed() => before = Some(life),
                }
            }
            Err(e) => {
                tracing::error!(error = format!("{e:#}"), "no instance could be made");
                // Those who wait hear of it, if nobody serves them.
                while before.as_ref().is_none_or(|life| life.retired.load(Relaxed))
                    && let Ok(job) = queue.lock().unwrap_or_else(PoisonError::into_inner).try_recv()
                {
                    drop(job);
                }
                sleep(ms(REST_MS)).await;
            }
        }
    }
}

struct Worker {
    queue: Queue,
    life: Arc<Life>,
    request_time: Duration,
    /// With this much memory it retires, before it has to trap.
    retire_bytes: usize,
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

/// The successor comes even if the worker panics.
impl Drop for Worker {
    fn drop(&mut self) {
        self.metrics.instances_live.fetch_sub(1, Relaxed);
        self.life.retire();
    }
}

impl Worker {
    async fn run(self, mut store: Store<StoreData>, service: Service) {
        let func = *service.wasi_http_handler().func_handle().func();
        let proxy = Proxy::P3(service);
        let ended = {
            let mut work = pin!(store.run_concurrent(async |accessor| self.drive(accessor, &proxy, func).await));
            let mut watch = Watch { timer: Box::pin(sleep(self.request_time)) };
            poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(end) => Poll::Ready(Some(end.flatten())),
                Poll::Pending => watch.poll(cx, &self.life, self.request_time + ms(EXPIRY_SLACK_MS)).map(|()| None),
            })
            .await
        };
        match ended {
            Some(Ok(())) => tracing::info!("a retired instance ended"),
            Some(Err(e)) => {
                count(&self.metrics.traps);
                tracing::error!(error = format!("{e:#}"), "an instance trapped");
            }
            None => {
                count(&self.metrics.expirations);
                tracing::warn!("an instance ended: it did not finish in time");
            }
        }
    }

    /// Takes requests until retirement, and ends when all are done.
    async fn drive(&self, accessor: &Accessor<StoreData>, proxy: &Proxy, func: Func) -> wasmtime::Result<()> {
        let mut running = FuturesUnordered::new();
        poll_fn(|cx| {
            self.life.event_loop.register(cx.waker());
            // The event loop runs: nothing has computed without a pause up to here.
            self.life.computing_ticks.store(0, Relaxed);
            loop {
                let finished: Poll<Option<wasmtime::Result<bool>>> = Pin::new(&mut running).poll_next(cx);
                match finished {
                    Poll::Ready(Some(Ok(in_time))) => {
                        if !in_time {
                            self.life.retire();
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(e))) => return Poll::Ready(Err(e)),
                    Poll::Ready(None) | Poll::Pending => {}
                }
                if self.life.memory_bytes.load(Relaxed) >= self.retire_bytes {
                    self.life.retire();
                }
                if self.life.retired.load(Relaxed) {
                    let done = running.is_empty() && accessor.poll_no_interesting_tasks(cx).is_ready();
                    return if done { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
                if accessor.poll_ready_for_concurrent_call(func, cx).is_pending() {
                    return Poll::Pending;
                }
                let next = self.queue.lock().unwrap_or_else(PoisonError::into_inner).poll_recv(cx);
                match next {
                    Poll::Ready(Some(job)) => running.push(self.answer(accessor, proxy, job)),
                    Poll::Ready(None) => self.life.retire(),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// Whether the request was answered in time.
    fn answer<'a>(
        &self,
        accessor: &'a Accessor<StoreData>,
        proxy: &'a Proxy,
        job: Job,
    ) -> impl Future<Output = wasmtime::Result<bool>> + use<'a> {
        let Job { request, answer, place } = job;
        let prepared =
            accessor.with(|mut store| Prepared::new(store.as_context_mut(), proxy, request, StoreData::http, answer));
        self.life.mark();
        let running = Running::new(self.life.clone());
        let time = sleep(self.request_time);
        async move {
            let _held = (place, running);
            prepared?.run(accessor, time).await
        }
    }
}

/// A request without an answer.
struct Running(Arc<Life>);

impl Running {
    fn new(life: Arc<Life>) -> Self {
        life.running.fetch_add(1, Relaxed);
        Self(life)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// Ends an instance whose own event loop cannot do it.
struct Watch {
    timer: Pin<Box<Sleep>>,
}

impl Watch {
    /// Ready when the instance is over. The timer is only moved when it has fired: this runs very often.
    fn poll(&mut self, cx: &mut Context<'_>, life: &Life, request_time: Duration) -> Poll<()> {
        let Some(deadline) = life.deadline(request_time) else { return Poll::Pending };
        loop {
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(deadline.into());
        }
    }
}
