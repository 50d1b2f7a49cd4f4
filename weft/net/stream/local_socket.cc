// Two processes of a host share memory in three steps: one listens under a random abstract name,
// the other connects, and the first byte of the connection may carry the descriptor of the memory.
//
// An abstract name has no file and no permissions: every process of the host that learns it may
// connect. So the acceptor asks the kernel for the user of the peer. The kernel noted it at
// connect(), and the peer cannot change it.
//
// Mapped memory whose file shrinks raises SIGBUS at the next access. So memory of others is mapped
// only if it is sealed against that. A seal cannot be removed.
//
// No locks: a connection and a SharedMemory belong to one thread at a time.
#include "weft/net/stream/local_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/net/internal/descriptors.h"

namespace weft::net::internal {
namespace {

struct LocalAddress {
  sockaddr_un storage{};
  socklen_t length = 0;
};

LocalAddress address_of(const std::string& name) {
  LocalAddress address;
  address.storage.sun_family = AF_UNIX;
  WEFT_REQUIRE(name.size() > 1 && name.size() < sizeof address.storage.sun_path && name[0] == '@',
               "'" + name.substr(0, 200) + "' is not the name of an abstract socket");
  std::memcpy(address.storage.sun_path + 1, name.data() + 1, name.size() - 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return address;
}

std::string random_digits() {
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (int half = 0; half < 2; ++half) text << std::setw(16) << random_number();
  return text.str();
}

UniqueFd local_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(Errc::kUnavailable, what + ": " + std::strerror(errno));
}

UniqueFd make_memory(std::size_t bytes) {
  UniqueFd fd(::memfd_create("weft", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    fail("shared memory of " + std::to_string(bytes >> 20) + " MiB");
  return fd;
}

}  // namespace

LocalListener listen_locally(const std::string& what) {
  std::string name = "@weft-" + what + "-" + random_digits();
  const LocalAddress address = address_of(name);
  UniqueFd fd = local_socket();
  if (!fd ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0)
    fail("no local socket for the " + what);
  return {std::move(fd), std::move(name)};
}

UniqueFd accept_own_user(int listener, const std::string& what) {
  for (;;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return fd;
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
        (peer.uid == ::geteuid() || peer.uid == 0))
      return fd;
    log_warn(what + " refuses a process of another user");
  }
}

UniqueFd connect_locally(const std::string& name) {
  const LocalAddress address = address_of(name);
  UniqueFd fd = local_socket();
  if (!fd) fail("no local socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0)
    return {};
  return fd;
}

bool send_descriptor(int socket, int fd) {
  char byte = 'w';
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

FirstByte receive_descriptor(int socket) {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  // One byte only: the data that follows belongs to the reader of the connection.
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  FirstByte first;
  first.arrived = got == 1;
  first.ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  if (got == 1) first.fd = take_descriptor(message);
  return first;
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  SharedMemory memory = attach(make_memory(bytes));
  return memory;
}

SharedMemory SharedMemory::attach(UniqueFd fd) {
  struct stat status {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0)
    throw Error(Errc::kCorrupt, "a process offers memory that is not sealed against shrinking");
  SharedMemory memory;
  memory.size_ = static_cast<std::size_t>(status.st_size);
  memory.fd_ = std::move(fd);
  if (memory.size_ == 0) return memory;
  void* const data =
      ::mmap(nullptr, memory.size_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd_.get(), 0);
  if (data == MAP_FAILED) fail("mapping shared memory");
  memory.data_ = static_cast<std::byte*>(data);
  return memory;
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void SharedMemory::renew() {
  if (data_ == nullptr) return;
  UniqueFd fd = make_memory(size_);
  void* const fresh = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (fresh == MAP_FAILED) fail("mapping shared memory");
  // Copied through a second mapping, which then replaces the old one in a single step.
  std::memcpy(fresh, data_, size_);
  ::munmap(fresh, size_);
  if (::mmap(data_, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
      MAP_FAILED)
    fail("mapping shared memory");
  fd_ = std::move(fd);
}

}  // namespace weft::net::internal
