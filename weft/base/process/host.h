// The host in a setting such as MASTER_ADDR.
#pragma once

#include <string>

namespace weft {

// Returns the host name or address in `text`, without blanks around it and without the brackets of
// an IPv6 address ("[::1]"). `name` is that of the setting, `port_name` that of the setting with
// the port. Throws Error(kBadConfig) if the text has a scheme ("tcp://"), a port, or is no host.
std::string parse_host(const std::string& name, const std::string& text,
                       const std::string& port_name);

}  // namespace weft
