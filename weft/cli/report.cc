// `weft report`: writes an HTML page that shows runs.
#include "weft/observe/report/report.h"

#include <iostream>

#include "weft/cli/commands.h"
#include "weft/cli/internal/run_name.h"

namespace weft::cli {

int report(const ReportCommand& command) {
  std::vector<std::string> folders;
  for (const std::string& run : command.runs) folders.push_back(run_folder_of(run));
  const std::string alone = folders.size() == 1 ? folders[0] + "/report.html" : "report.html";
  const std::string file = command.output.empty() ? alone : command.output;
  observe::write_report(folders, file);
  std::cout << file << '\n';
  return 0;
}

}  // namespace weft::cli
