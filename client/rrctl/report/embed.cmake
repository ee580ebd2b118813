# cmake -DHTML=report.html -DOUT=template.cc -P embed.cmake: the file as a constant of C++.
file(READ ${HTML} text)
if(text MATCHES "\\)rr\"")
  message(FATAL_ERROR "${HTML} ends the string literal")
endif()
file(WRITE ${OUT} "#include \"client/rrctl/report/template.h\"\n\nnamespace routing_replay {\nconst char kReportTemplate[] = R\"rr(${text})rr\";\n}\n")
