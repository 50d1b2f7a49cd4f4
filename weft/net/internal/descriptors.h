// Descriptors that come with a message of a local socket.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

#include "weft/base/file.h"

namespace weft::net::internal {

// The descriptor of a message that recvmsg() has taken; none if none came. A buffer for one
// descriptor has room for two, and no process of weft sends a second one: all but the last are
// closed.
inline UniqueFd take_descriptor(msghdr& message) {
  UniqueFd taken;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(header) + at, sizeof fd);
      taken.reset(fd);
    }
  }
  return taken;
}

}  // namespace weft::net::internal
