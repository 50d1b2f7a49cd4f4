// Tests the listening address of a rank and the options of its connections.
#include "weft/net/tcp/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "weft/net/testing/ranks.h"
#include "weft/net/testing/trials.h"

namespace weft::net::internal {
namespace socket_test {

using testing::HasSubstr;
using testing::Not;

TEST(Congestion, IsTheNamedOneAndAnUnknownNameIsAnError) {
  TcpOptions options;
  options.congestion = "reno";
  make_tcp(2, options);
  options.congestion = "no-such-control";
  const Error error = error_of([&] { make_tcp(2, options); });
  EXPECT_EQ(error.code(), Errc::kBadConfig);
  EXPECT_THAT(error.what(), HasSubstr("no-such-control"));
}

TEST(Congestion, OfAConnectionCanBeSet) {
  const Fd listener = listen_on("127.0.0.1", 0);
  const Fd dialed = begin_connect(join_address("127.0.0.1", bound_port(listener)));
  set_congestion(dialed, "reno");  // every system has it
  EXPECT_EQ(congestion_of(dialed), "reno");
}

TEST(Congestion, OfANearPeerIsNeverBbr) {
  const Fd listener = listen_on("127.0.0.1", 0);
  EXPECT_NE(congestion_of(listener), "bbr");
  const Fd dialed = begin_connect(join_address("127.0.0.1", bound_port(listener)));
  EXPECT_NE(congestion_of(dialed), "bbr");
  std::string from;
  int error = 0;
  const Fd accepted = accept_on(listener, from, error);
  ASSERT_TRUE(accepted) << errno_text(error);
  for (const Fd* fd : {&dialed, &accepted}) {
    fit_to_distance(*fd);
    EXPECT_NE(congestion_of(*fd), "bbr");
  }
}

TEST(Interface, CanBeAnAddressANetworkOrAName) {
  EXPECT_EQ(resolve_interface("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(resolve_interface("fd00::7"), "fd00::7");
  EXPECT_EQ(resolve_interface("127.0.0.0/8"), "127.0.0.1");
  EXPECT_EQ(resolve_interface("127.0.0.1/32"), "127.0.0.1");
  EXPECT_EQ(resolve_interface("lo"), "127.0.0.1");
}

TEST(Interface, WithAnAddressOfAnotherHostIsAMistakeThatListsTheOwnOnes) {
  const Error error = error_of([] { listen_on("203.0.113.7", 0); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("203.0.113.7:0: it is not an address of this host"));
  EXPECT_THAT(error.what(), HasSubstr("lo 127.0.0.1"));
  EXPECT_THAT(error.what(), Not(HasSubstr("port, or 0")));
}

TEST(Interface, ThatDoesNotExistIsAnErrorThatListsTheExistingOnes) {
  for (const char* where :
       {"no-such-interface", "198.51.100.128/25", "127.0.0.2/32", "2001:db8::/32"}) {
    const Error error = error_of([&] { resolve_interface(where); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(where));
    EXPECT_THAT(error.what(), HasSubstr("lo 127.0.0.1"));
  }
  for (const char* where : {"127.0.0.0/33", "127.0.0.0/", "localhost/8", "127.0.0.0/8x"}) {
    EXPECT_THAT(error_of([&] { resolve_interface(where); }).what(), HasSubstr("is not a network"))
        << where;
  }
}

}  // namespace socket_test
}  // namespace weft::net::internal
