//! What an edge does: sockets, tasks and the store around the cores.
