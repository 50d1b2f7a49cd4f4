#include "weft/base/process/host.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string parsed(const std::string& text) {
  try {
    return parse_host("MASTER_ADDR", text, "MASTER_PORT");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    return "refused: " + error.message();
  }
}

TEST(ParseHost, TakesNamesAndAddressesAsPeopleWriteThem) {
  for (const char* host : {"node0", "node-0.example.org", "10.0.0.1", "::1", "fe80::1%eth0"})
    EXPECT_EQ(parsed(host), host);
  EXPECT_EQ(parsed("[::1]"), "::1");
  EXPECT_EQ(parsed(" \t127.0.0.1\n"), "127.0.0.1");
  EXPECT_EQ(parsed(" [fe80::1] "), "fe80::1");
}

TEST(ParseHost, RefusesWhatIsMoreThanAHost) {
  EXPECT_EQ(parsed("tcp://10.0.0.1"),
            "refused: MASTER_ADDR \"tcp://10.0.0.1\": expected a host name or address, without "
            "\"tcp://\"; the port goes into MASTER_PORT");
  EXPECT_EQ(parsed("node0:29500"),
            "refused: MASTER_ADDR \"node0:29500\": expected a host name or address without a port; "
            "set MASTER_PORT to 29500");
  EXPECT_NE(parsed("[::1]:29500").find("set MASTER_PORT to 29500"), std::string::npos);
  for (const char* text : {" ", "node0 node1", "node0,node1", "a/b", "[]", "[::1"})
    EXPECT_EQ(parsed(text).find("refused: MASTER_ADDR \""), 0u) << text;
}

}  // namespace
}  // namespace weft
