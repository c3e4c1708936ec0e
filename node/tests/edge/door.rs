//! What the tests' edge does with what comes: enrollments, hellos, requests, events.

use super::*;

pub(super) struct Gate(pub(super) Arc<Inner>);

impl Door for Gate {
    fn knows(&self, _key: &KeyHash) -> bool {
        true
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            match newcomer.hello().purpose {
                Purpose::Enroll => inner.enroll(newcomer),
                Purpose::Hello => inner.welcome(newcomer),
            }
        })
    }
}

impl Inner {
    /// A new lease for a stream of this connection.
    pub(super) fn give(&self, connection: &Connection) -> u64 {
        let mut given = self.given.lock().unwrap();
        given.push(connection.generation().0);
        given.len() as u64
    }

    /// Whether it stands: its connection has not ended.
    fn owns(&self, lease: u64, connection: &Connection) -> bool {
        let at = usize::try_from(lease).unwrap().checked_sub(1);
        at.and_then(|at| self.given.lock().unwrap().get(at).copied()) == Some(connection.generation().0)
    }

    fn enroll(&self, newcomer: Newcomer) {
        let request: NodeEnrollRequest = bounds::decode(&newcomer.hello().payload).unwrap();
        assert_eq!(request.token_id, self.token_id);
        assert_eq!(request.token_secret, self.secret.expose());
        let edge = EdgeId::parse(EDGE).unwrap();
        let node = NodeId::random();
        let issued = self
            .authority
            .sign_node(&request.signing_request, &edge, node, Wall::now(), CLIENT_VALIDITY)
            .unwrap();
        self.heard.lock().unwrap().enrollments.push(request);
        if self.lose_answers.load(Ordering::SeqCst) > 0 {
            self.lose_answers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let answer = NodeEnrollResponse {
            node_id: node.to_string(),
            edge_id: EDGE.into(),
            name: "gpu-1".into(),
            certificate_chain: issued.chain.iter().map(|der| der.to_vec()).collect(),
            ca_certificate: self.authority.certificate_der().to_vec(),
            not_after_unix_ms: issued.not_after.unix_ms(),
        };
        newcomer.answer(answer.encode_to_vec());
    }

    fn welcome(self: Arc<Self>, newcomer: Newcomer) {
        if self.revoked.load(Ordering::SeqCst) {
            let error = Error::new(Code::Unauthenticated, "CREDENTIAL_REVOKED", "the credential was revoked")
                .with_retry_after(Duration::from_millis(200));
            return newcomer.reject(Rejection::new(error));
        }
        assert!(newcomer.certificate().is_some());
        let yours = newcomer.hello().versions;
        if let Err(verdict) = negotiate(NODE_PROTOCOL, yours) {
            let error = Error::new(Code::Conflict, "PROTOCOL_VERSION", "the versions do not meet");
            return newcomer.reject(Rejection { error, verdict: Some(verdict), yours, mine: NODE_PROTOCOL });
        }
        let hello: NodeHelloRequest = bounds::decode(&newcomer.hello().payload).unwrap();
        let (inventory, telemetry) = (&self.cursors.0, &self.cursors.1);
        inventory.fetch_max(hello.inventory_sequence, Ordering::SeqCst);
        telemetry.fetch_max(hello.telemetry_sequence, Ordering::SeqCst);
        let (inventory, telemetry) = (inventory.load(Ordering::SeqCst), telemetry.load(Ordering::SeqCst));
        let statuses: Vec<DeclaredEngine> = hello.engines.clone();
        {
            let mut heard = self.heard.lock().unwrap();
            heard.settings = hello.settings.clone().unwrap();
            heard.hellos.push(hello);
            heard.note(statuses.into_iter().filter_map(|engine| engine.status).collect());
        }
        let response = NodeHelloResponse {
            edge_id: EDGE.into(),
            name: "gpu-1".into(),
            inventory_sequence: inventory,
            telemetry_sequence: telemetry,
            ..NodeHelloResponse::default()
        };
        let welcome = WelcomeOut {
            generation: Generation(self.generation.fetch_add(1, Ordering::SeqCst) + 1),
            intervals: Intervals {
                heartbeat: Duration::from_millis(200),
                telemetry: Duration::from_secs(1),
                ..Intervals::default()
            },
            payload: response.encode_to_vec(),
            ..WelcomeOut::default()
        };
        newcomer.accept(welcome, Arc::new(Ear(Arc::clone(&self))));
    }
}

impl Heard {
    fn note(&mut self, engines: Vec<EngineStatus>) {
        for status in &engines {
            let state = (status.name.clone(), status.state(), status.restarts);
            if self.causes.last() != Some(&status.cause) {
                self.causes.push(status.cause.clone());
            }
            if self.states.iter().rfind(|(name, ..)| *name == status.name) != Some(&state) {
                self.states.push(state);
            }
        }
        self.engines = engines;
    }
}

struct Ear(Arc<Inner>);

impl Handler for Ear {
    fn on_request(&self, connection: &Connection, request: IncomingRequest) {
        let mut heard = self.0.heard.lock().unwrap();
        match request.method {
            method::NODE_LEASES => {
                let leases = bounds::decode::<NodeLeases>(&request.payload).unwrap();
                // Still carried, and owned by nobody any more: of connections before this one. It may be named again
                // while it gives work already.
                let mut cancel_lease_ids = leases.lease_ids.clone();
                cancel_lease_ids.retain(|lease| !self.0.owns(*lease, connection));
                let ack = NodeLeasesAck { cancel_lease_ids };
                if ack.cancel_lease_ids.is_empty() {
                    *self.0.connection.lock().unwrap() = Some(connection.clone());
                }
                heard.leases.push(leases);
                request.respond(Ok(ack.encode_to_vec()));
            }
            method::NODE_HEARTBEAT => {
                let heartbeat = bounds::decode::<NodeHeartbeat>(&request.payload).unwrap();
                heard.heartbeats += 1;
                heard.settings = heartbeat.settings.clone().unwrap();
                heard.beats_unix_ms.push(heartbeat.observed_at_unix_ms);
                heard.note(heartbeat.engines.clone());
                heard.heartbeat = heartbeat;
                request.respond(Ok(NodeHeartbeatAck::default().encode_to_vec()));
            }
            // What a node says of its jobs has tests of its own.
            method::NODE_JOB_READY => request.respond(Ok(Vec::new())),
            _ => panic!("method {}", request.method),
        }
    }

    fn on_event(
        &self,
        _connection: &Connection,
        number: u32,
        _key: &str,
        payload: &[u8],
    ) -> Result<(), Error> {
        let mut heard = self.0.heard.lock().unwrap();
        match number {
            event::NODE_INVENTORY => heard.inventories.push(bounds::decode(payload)?),
            event::NODE_TELEMETRY => heard.telemetries.push(bounds::decode(payload)?),
            event::NODE_DECLARED => heard.declared.push(bounds::decode(payload)?),
            event::NODE_ENGINES => heard.note(bounds::decode::<NodeEngines>(payload)?.engines),
            // What is in artifact roots has tests of its own.
            event::NODE_ARTIFACTS => {}
            _ => panic!("event {number}"),
        }
        Ok(())
    }

    fn on_goaway(&self, _connection: &Connection, _goaway: &umbel_wire::Goaway) {
        self.0.heard.lock().unwrap().goaways += 1;
    }
}
