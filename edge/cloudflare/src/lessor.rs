//! The Durable Object that leases permits for all isolates of a location: a shim over
//! [`flashgate_gate::Sublessor`].
//!
//! There is one per sale and data centre, named `sale@colo`; only isolates of this Worker reach it. It
//! stores nothing: evicted or moved, it asks the origin again.
#![expect(missing_docs, reason = "the macro's own functions have none")]

use crate::{Place, Runtime, gate_config, translate};
use flashgate_gate::{BodyError, RequestBody, Sublessor};
use flashgate_shared::limits::BUYER_BODY_BYTES;
use std::rc::Rc;
use worker::{DurableObject, Env, Request, Response, State, durable_object, wasm_bindgen};

/// One sale's desk in one data centre.
#[durable_object(fetch)]
pub struct LeaseDesk {
    sublessor: Sublessor,
    place: Rc<Place>,
    env: Env,
}

impl DurableObject for LeaseDesk {
    fn new(_state: State, env: Env) -> Self {
        Self {
            sublessor: Sublessor::new(gate_config(&env)),
            // It asks no other desk, so it needs no data centre.
            place: Rc::new(Place::new(&env, String::new())),
            env,
        }
    }

    async fn fetch(&self, message: Request) -> worker::Result<Response> {
        let bad = || Response::error("not a question for a lease", 400);
        let Some(request) = translate::request(message.inner().to_owned()) else {
            return bad();
        };
        let (parts, body) = request.into_parts();
        let Ok::<_, BodyError>(body) = body.read(BUYER_BODY_BYTES).await else {
            return bad();
        };
        let runtime = Runtime { place: self.place.clone(), env: self.env.clone(), sub_leases: false };
        let answer = self.sublessor.handle(&runtime, http::Request::from_parts(parts, body)).await;
        Ok(translate::response(answer.map(flashgate_gate::Body::Bytes))?.into())
    }
}
