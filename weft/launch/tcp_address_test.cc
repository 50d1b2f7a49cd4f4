#include "weft/launch/internal/tcp_address.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"

namespace weft::launch::internal {
namespace tcp_address_test {

constexpr const char* kFlag = "--rdzv-endpoint";
constexpr int kPort = 29400;

// Debian's /etc/hosts gives a host's own name such an address.
TEST(TcpAddress, OfAHostNameMustNotBeLoopback) {
  for (const auto& number : {"127.0.1.1", "::1"}) {
    const Address address = resolve(kFlag, number, kPort);
    expect_refused([&] { require_reachable(kFlag, "node0", address); }, Errc::kBadConfig,
                   std::string("--rdzv-endpoint node0: this host resolves the name to ") + number);
  }
}

TEST(TcpAddress, MayBeLoopbackIfTheUserSaysSo) {
  for (const auto& host : {"127.0.0.1", "::1", "localhost", "ip6-localhost"})
    EXPECT_NO_THROW(require_reachable(kFlag, host, resolve(kFlag, "127.0.0.1", kPort))) << host;
}

TEST(TcpAddress, OfAHostNameMayBeThatOfANetwork) {
  EXPECT_NO_THROW(require_reachable(kFlag, "node0", resolve(kFlag, "192.0.2.1", kPort)));
}

}  // namespace tcp_address_test
}  // namespace weft::launch::internal
