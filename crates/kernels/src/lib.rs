//! Block formats and CPU functions over slices of them, and the thread team
