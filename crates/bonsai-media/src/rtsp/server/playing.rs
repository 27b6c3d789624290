//! What a session does once its tracks are set up: plays, pauses, ends.

use std::fmt::Write as _;

use rtsp_types::StatusCode;
use rtsp_types::headers::{RANGE, RTP_INFO, SCALE, SESSION, SPEED};

use super::{Asked, Ended, Host, Refusal, Reply, Server, Session, range};

impl Server {
    /// The session that a request is about as a whole.
    fn whole(&mut self, asked: &Asked<'_>, session: usize) -> Result<&mut Session, Refusal> {
        let path = asked.path()?;
        let gone = || Refusal::new(StatusCode::SessionNotFound, "no such session");
        let session = self
            .sessions
            .get_mut(session)
            .and_then(Option::as_mut)
            .ok_or_else(gone)?;
        if session.path.clip() != path.clip() {
            return Err(Refusal::new(
                StatusCode::NotFound,
                "that is not the session's clip",
            ));
        }
        match path.track() {
            Some(_) if session.tracks.len() > 1 => {
                let why = "all tracks of a session are played together";
                Err(Refusal::new(StatusCode::OnlyAggregateOperationAllowed, why))
            }
            _ => Ok(session),
        }
    }

    pub(super) fn play(
        &mut self,
        asked: &Asked<'_>,
        index: usize,
        host: &mut dyn Host,
    ) -> Result<Reply, Refusal> {
        let session = self.whole(asked, index)?;
        let range = match asked.header(&RANGE) {
            Some(text) => Some(range::read(text)?),
            None => None,
        };
        let own = (SESSION, session.name.clone());
        if session.is_playing && range.is_none() {
            return Ok((vec![own], Vec::new()));
        }
        let (from, until) = range.unwrap_or_default();
        let length = session.found.clip.length_ns;
        // Behind the end it begins again (RFC 2326, 10.5), as there is nothing left to be sent.
        let from = from.or(session.is_at_end.then_some(0));
        if from.is_some_and(|from| from > length)
            || until.is_some_and(|until| until <= from.unwrap_or(0))
        {
            let why = format!("the film plays npt=0-{:.3}", length as f64 / 1e9);
            return Err(Refusal::new(StatusCode::InvalidRange, why));
        }
        let started = host.play(index, from, until)?;
        session.is_playing = true;
        session.is_to_end = until.is_none_or(|until| until >= length);
        session.is_at_end = false;
        let mut info = String::new();
        for ((_, url), (_, sequence, timestamp)) in session.tracks.iter().zip(&started.lines) {
            let comma = if info.is_empty() { "" } else { "," };
            let _ = write!(info, "{comma}url={url};seq={sequence};rtptime={timestamp}");
        }
        let mut headers = vec![
            own,
            (RANGE, range::write(started.from_ns, started.until_ns)),
            (RTP_INFO, info),
        ];
        // What was chosen is answered (RFC 2326, 12.34 and 12.35), and that is the film's own pace.
        for name in [SCALE, SPEED] {
            if asked.header(&name).is_some() {
                headers.push((name, "1.0".to_owned()));
            }
        }
        Ok((headers, Vec::new()))
    }

    pub(super) fn pause(
        &mut self,
        asked: &Asked<'_>,
        index: usize,
        host: &mut dyn Host,
    ) -> Result<Reply, Refusal> {
        let session = self.whole(asked, index)?;
        // GStreamer sends it behind the end of a film, and takes a refusal for an error.
        if session.is_playing {
            session.is_playing = false;
            host.pause(index);
        }
        Ok((vec![(SESSION, session.name.clone())], Vec::new()))
    }

    pub(super) fn tear_down(
        &mut self,
        asked: &Asked<'_>,
        index: usize,
        host: &mut dyn Host,
    ) -> Result<Reply, Refusal> {
        let own = (SESSION, self.whole(asked, index)?.name.clone());
        self.end(index, host, Ended::Told);
        Ok((vec![own], Vec::new()))
    }
}
