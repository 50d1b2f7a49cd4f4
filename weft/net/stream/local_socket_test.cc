// Unix sockets of one user, and sealed memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/net/stream/local_socket.h"

namespace weft::net::internal {
namespace local_socket_test {

TEST(LocalSocket, CarriesSharedMemoryToAnotherProcess) {
  const LocalListener listener = listen_locally("test");
  const UniqueFd client = connect_locally(listener.name);
  ASSERT_TRUE(client);
  const UniqueFd server = accept_own_user(listener.fd.get(), "the test");
  ASSERT_TRUE(server);
  EXPECT_FALSE(receive_descriptor(server.get()).arrived);
  SharedMemory mine = SharedMemory::create(5000);
  ASSERT_TRUE(send_descriptor(client.get(), mine.fd()));
  FirstByte first = receive_descriptor(server.get());
  ASSERT_TRUE(first.arrived);
  const SharedMemory theirs = SharedMemory::attach(std::move(first.fd));
  ASSERT_EQ(theirs.size(), 5000u);
  std::memcpy(mine.data(), "seen", 5);
  EXPECT_STREQ(reinterpret_cast<const char*>(theirs.data()), "seen");

  // After renew(), the other side keeps the old memory.
  std::byte* const place = mine.data();
  mine.renew();
  EXPECT_EQ(mine.data(), place);
  std::memcpy(theirs.data(), "late", 5);
  EXPECT_STREQ(reinterpret_cast<const char*>(mine.data()), "seen");
}

TEST(LocalSocket, TellsThatNobodyListens) {
  std::string name;
  {
    const LocalListener listener = listen_locally("test");
    name = listener.name;
  }
  EXPECT_FALSE(connect_locally(name));
  expect_refused([] { connect_locally("/tmp/socket"); }, Errc::kInvalidArgument, "abstract");
}

TEST(LocalSocket, NoticesTheEndOfAConnection) {
  const LocalListener listener = listen_locally("test");
  UniqueFd client = connect_locally(listener.name);
  const UniqueFd server = accept_own_user(listener.fd.get(), "the test");
  client.reset();
  const FirstByte first = receive_descriptor(server.get());
  EXPECT_FALSE(first.arrived);
  EXPECT_TRUE(first.ended);
}

TEST(LocalSocket, RefusesMemoryThatAPeerCouldShrink) {
  UniqueFd open(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 4096), 0);
  expect_refused([&] { SharedMemory::attach(std::move(open)); }, Errc::kCorrupt, "not sealed");
  expect_refused([] { SharedMemory::attach(UniqueFd(::open("/dev/null", O_RDONLY))); },
                 Errc::kCorrupt, "not sealed");
}

}  // namespace local_socket_test
}  // namespace weft::net::internal
