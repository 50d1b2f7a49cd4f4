// The parameter servers that the launcher of this process's job runs: `weft run --servers N`, or
// `weft train --servers N`. Clients find them through the environment:
//
//   ps::Client client(ps::job_client());          // in a rank: its number is that of the worker
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "weft/ps/client.h"

namespace weft::ps {

// Name of these servers for job_directory().
inline constexpr const char* kJobServers = "default";

// Number of these servers. 0: the job has none. Throws Error(kInvalidArgument) if WEFT_PS_SERVERS
// is not a number.
std::uint32_t servers_of_job();

// Options of a client of these servers, as worker RANK. Without RANK in the environment, the client
// only pulls. Throws Error(kInvalidArgument) if the job has no servers.
ClientOptions job_client();

// The secret of the job (WEFT_SECRET_FD). None: the job has no secret. Throws
// Error(kInvalidArgument) if the file is not one of a secret.
std::optional<std::array<std::byte, 32>> job_secret();

}  // namespace weft::ps
