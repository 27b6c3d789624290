"""GStreamer's RTSP server, as it is packaged, with a film of its own encoder.

  rtsp.py encode FILE SECONDS    writes the film, an MP4 file
  rtsp.py serve FILE [sound]     serves it as rtsp://127.0.0.1:PORT/film; the line
                                 "PORT" says where, and that it listens; with its
                                 sound (AAC), if it has some and that is said

The film has 25 frames a second and a key frame each second, eight times as large as
the others: a still picture with much detail, and noise in a part of it. The
quantizer is fixed, so it is the same film wherever it is encoded, about 2 Mbit/s.

Each viewer has a pipeline of its own, from the film's first frame. Nothing here
sends, waits or paces: that is all the server's."""

import os
import sys


def fail(text):
    plain = text.replace("\\", "/").replace('"', "'").replace("\n", " ")
    print(f'{{"error":"{plain}"}}', flush=True)
    sys.exit(1)


try:
    import gi

    gi.require_version("Gst", "1.0")
    gi.require_version("GstRtspServer", "1.0")
    from gi.repository import GLib, Gst, GstRtspServer
except (ImportError, ValueError) as error:
    fail(f"no RTSP server for python3: {error}")

FRAMES = 25
FILM = (
    "compositor name=mix background=black sink_0::zorder=0 sink_1::zorder=1 "
    "sink_1::xpos=400 sink_1::ypos=240 "
    "! video/x-raw,format=I420,width=640,height=360,framerate={frames}/1 "
    "! x264enc pass=quant quantizer=30 key-int-max={frames} bframes=0 option-string=scenecut=0 "
    "speed-preset=superfast byte-stream=false "
    "! video/x-h264,stream-format=avc,profile=main ! mp4mux ! filesink location={file} "
    "videotestsrc pattern=zone-plate kx2=60 ky2=60 num-buffers={count} "
    "! video/x-raw,width=640,height=360,framerate={frames}/1 ! mix.sink_0 "
    "videotestsrc pattern=snow num-buffers={count} "
    "! video/x-raw,width=160,height=90,framerate={frames}/1 ! mix.sink_1"
)


def encode(file, seconds):
    count = FRAMES * int(seconds)
    try:
        film = Gst.parse_launch(FILM.format(frames=FRAMES, count=count, file=file))
    except GLib.Error as error:
        fail(f"no encoder: {error.message}")
    film.set_state(Gst.State.PLAYING)
    kinds = Gst.MessageType.EOS | Gst.MessageType.ERROR
    message = film.get_bus().timed_pop_filtered(Gst.CLOCK_TIME_NONE, kinds)
    film.set_state(Gst.State.NULL)
    if message.type == Gst.MessageType.ERROR:
        fail(f"the film cannot be encoded: {message.parse_error()[0].message}")
    print(os.path.getsize(file), flush=True)


PICTURES = "( filesrc location={file} ! qtdemux ! rtph264pay name=pay0 pt=96 )"
BOTH = (
    "( filesrc location={file} ! qtdemux name=film "
    "film. ! queue ! rtph264pay name=pay0 pt=96 film. ! queue ! rtpmp4gpay name=pay1 pt=97 )"
)


def serve(file, pipeline):
    server = GstRtspServer.RTSPServer()
    server.set_address("127.0.0.1")
    server.set_service("0")
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(pipeline.format(file=file))
    server.get_mount_points().add_factory("/film", factory)
    if server.attach(None) == 0:
        fail("the RTSP server cannot listen")
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


Gst.init(None)
if sys.argv[1:2] == ["encode"] and len(sys.argv) == 4:
    encode(sys.argv[2], sys.argv[3])
elif sys.argv[1:2] == ["serve"] and len(sys.argv) == 3:
    serve(sys.argv[2], PICTURES)
elif sys.argv[1:2] == ["serve"] and sys.argv[3:] == ["sound"]:
    serve(sys.argv[2], BOTH)
else:
    sys.exit(2)
