#include "weft/ps/job.h"

#include <unistd.h>

#include <string_view>

#include "weft/base/error.h"
#include "weft/base/text/variables.h"

namespace weft::ps {
namespace {

// The number in a variable; none if it is empty or not set.
std::optional<std::uint32_t> number_of(const char* name) {
  if (!is_variable_set(name)) return std::nullopt;
  const int number = number_variable(name).value_or(-1);
  WEFT_REQUIRE(number >= 0, std::string(name) + " is \"" + variable(name) + "\", not a number");
  return static_cast<std::uint32_t>(number);
}

}  // namespace

std::uint32_t servers_of_job() { return number_of("WEFT_PS_SERVERS").value_or(0); }

ClientOptions job_client() {
  ClientOptions options;
  options.servers = servers_of_job();
  WEFT_REQUIRE(options.servers > 0,
               "this job has no parameter servers; start it with weft run --servers N, or give "
               "ClientOptions::directory");
  options.worker = number_of("RANK");
  options.secret = job_secret();
  return options;
}

std::optional<std::array<std::byte, 32>> job_secret() {
  const auto file = number_of("WEFT_SECRET_FD");
  if (!file) return std::nullopt;
  std::array<std::byte, 32> secret;
  WEFT_REQUIRE(::pread(static_cast<int>(*file), secret.data(), secret.size(), 0) ==
                   static_cast<ssize_t>(secret.size()),
               "WEFT_SECRET_FD is not an open file of 32 bytes");
  return secret;
}

}  // namespace weft::ps
